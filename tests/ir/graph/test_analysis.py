"""Who needs whom, what every path goes through, and last uses, against their definitions on random graphs."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.graph.analysis import dominators, last_uses, needed, operand_dag
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType

X = TensorType((T, 4), DType.F32)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    b = Builder()
    pool = [b.input("x", X)]
    for _ in range(draw(st.integers(1, 8))):
        pool.append(b.op("tensor.add", draw(st.sampled_from(pool)), draw(st.sampled_from(pool))))
    return Graph((pool[0],), tuple(pool))


def paths(top: Node, stops: frozenset[Node] = frozenset()) -> Iterator[list[Node]]:
    """All paths down from `top`, of every length."""
    yield [top]
    if top not in stops:
        for operand in top.operands:
            for path in paths(operand.node, stops):
                yield [top, *path]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_needed_is_what_lies_on_a_path_that_no_stop_cuts(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    by = data.draw(st.lists(st.sampled_from(graph.nodes), unique=True, max_size=3))
    stops = frozenset(data.draw(st.lists(st.sampled_from(graph.nodes), max_size=3)))
    expected = {node for top in by for path in paths(top, stops) for node in path}
    assert needed(operand_dag(graph), by, stops) == expected


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_dominators_are_on_every_path(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    top, node = data.draw(st.sampled_from(graph.nodes)), data.draw(st.sampled_from(graph.nodes))
    ways = [set(path) for path in paths(top) if path[-1] is node]
    found = dominators(operand_dag(graph), top, node)
    assert set(found) == (set.intersection(*ways) if ways else set())
    if ways:
        assert found[0] is top
        assert found[-1] is node
        order = {n: i for i, n in enumerate(graph.nodes)}
        assert [order[n] for n in found] == sorted((order[n] for n in found), reverse=True)


def test_only_the_operands_asked_for_are_followed() -> None:
    b = Builder()
    x, w = b.input("x", X), b.weight("w", TensorType((4, 4), DType.F32))
    y = b.op("tensor.linear", x, w)
    dag = operand_dag(Graph((x,), (y,)), lambda value: value.op != "core.weight")
    assert needed(dag, [y.node]) == {x.node, y.node}


def test_last_uses() -> None:
    b = Builder()
    x = b.input("x", X)
    y = b.op("tensor.exp", x)
    z = b.op("tensor.neg", y)
    w = b.op("tensor.add", z, y)
    assert last_uses([y.node, z.node, w.node]) == {x: 0, y: 2, z: 2}
