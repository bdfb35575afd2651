"""Convexity of groups and liveness."""

import itertools

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.graph.analysis import is_convex, liveness, to_networkx
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType

X = TensorType((T, 4), DType.F32)


def diamond() -> tuple[Graph, dict[str, Node]]:
    b = Builder()
    x = b.input("x", X)
    left, right = b.op("tensor.exp", x), b.op("tensor.neg", x)
    join = b.op("tensor.add", left, right)
    return Graph((x,), (join,)), {"x": x.node, "left": left.node, "right": right.node, "join": join.node}


def test_a_group_with_a_path_out_and_back_is_not_convex() -> None:
    graph, at = diamond()
    dag = to_networkx(graph)
    assert not is_convex(dag, [at["x"], at["left"], at["join"]])
    assert is_convex(dag, [at["x"], at["left"]])
    assert is_convex(dag, [at["left"], at["right"], at["join"]])
    assert is_convex(dag, [at["left"], at["right"]])
    assert is_convex(dag, [])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convexity_agrees_with_its_definition(data: st.DataObject) -> None:
    b = Builder()
    pool = [b.input("x", X)]
    for _ in range(data.draw(st.integers(1, 9))):
        pool.append(b.op("tensor.add", data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(pool))))
    graph = Graph((pool[0],), tuple(pool))
    group = set(data.draw(st.lists(st.sampled_from(graph.nodes), unique=True)))
    dag = to_networkx(graph)
    reach = {n: nx.descendants(dag, n) for n in graph.nodes}
    leaves = any(
        m in reach[a] and z in reach[m] for a, z in itertools.product(group, group) for m in set(graph.nodes) - group
    )
    assert is_convex(dag, group) == (not leaves)


def test_liveness_is_the_last_use_and_outputs_live_on() -> None:
    b = Builder()
    x = b.input("x", X)
    y = b.op("tensor.exp", x)
    z = b.op("tensor.neg", y)
    w = b.op("tensor.add", z, y)
    graph = Graph((x,), (w, z))
    order = {n: i for i, n in enumerate(graph.nodes)}
    live = liveness(graph)
    assert live[x.node] == order[y.node]
    assert live[y.node] == order[w.node]
    assert live[z.node] == live[w.node] == len(graph.nodes)
