"""Groups of nodes: what is free, what a group reads and gives, and that groups never depend on each other."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.types import TensorType
from inferir.passes.fuse.grouping import Grouping, find_uses, row_symbol

B = Builder()
X = B.input("x", TensorType((T, 8), DType.F32))
TABLE = B.weight("table", TensorType((16, 8), DType.F32))
POSITIONS = B.input("positions", TensorType((T,), DType.I32))


def op(name: str, *operands: Value, **attrs: object) -> Value:
    return B.op(f"tensor.{name}", *operands, **attrs)


def grouping(*outputs: Value) -> Grouping:
    return Grouping(find_uses(Graph((X, POSITIONS), outputs), frozenset(), share_lookups=True))


def test_views_and_rows_by_position_are_free_unless_they_leave_the_graph() -> None:
    row = op("embedding", TABLE, POSITIONS)
    view = op("view", op("exp", X), shape=(T, 2, 4))
    total = op("add", op("exp", view), op("view", row, shape=(T, 2, 4)))
    uses = find_uses(Graph((X, POSITIONS), (total,)), frozenset(), share_lookups=True)
    assert {n.op for n in uses.free} == {"tensor.view", "tensor.embedding"}
    assert uses.base[total.node] == (total.node.operands[0], TABLE, POSITIONS)
    kept = find_uses(Graph((X, POSITIONS), (total, view, row)), frozenset(), share_lookups=True)
    assert view.node not in kept.free
    assert row.node not in kept.free
    assert row.node not in find_uses(Graph((X, POSITIONS), (total,)), frozenset(), share_lookups=False).free


def test_rows_of_a_cache_write_are_those_of_what_is_stored() -> None:
    cache = B.input("cache", TensorType((9, 1, 8, 4, 1), DType.F32))
    x = B.input("k", TensorType((T, 1, 8), DType.F32))
    slots = B.input("slots", TensorType((T,), DType.I32))
    assert row_symbol(B.op("kv.write", cache, x, slots, role="k", block_size=4).node) == T


@pytest.mark.parametrize(
    ("pick", "reason"),
    [((0, 1), None), ((0, 3), "another kernel lies between them"), ((0, 1, 2, 3), None)],
)
def test_a_path_that_leaves_and_comes_back_is_refused(pick: tuple[int, ...], reason: str | None) -> None:
    a = op("exp", X)
    b, c = op("neg", a), op("abs", a)
    chain = [a, b, c, op("add", b, c)]
    groups = grouping(chain[-1])
    assert groups.reason_against(groups.of[chain[i].node] for i in pick) == reason


def test_operands_that_lie_in_memory_keep_their_maker_apart() -> None:
    table = op("exp", TABLE)
    row = op("embedding", table, POSITIONS)
    groups = grouping(op("neg", row))
    found = groups.reason_against((groups.of[table.node], groups.of[row.node]))
    assert found == "it is read whole or by index, not row by row"


def test_outputs_are_what_is_read_elsewhere_or_leaves() -> None:
    a = op("exp", X)
    b, c = op("neg", a), op("abs", a)
    groups = grouping(op("add", b, c), b)
    assert groups.outputs([a.node, b.node]) == [a, b]
    assert groups.outputs([a.node, b.node, c.node]) == [b, c]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_merges_that_are_not_refused_leave_an_order(data: st.DataObject) -> None:
    """What `depends` and `sorted` say is what a graph of the groups says."""
    values = [op("exp", X)]
    for _ in range(data.draw(st.integers(2, 9))):
        values.append(op("add", data.draw(st.sampled_from(values)), data.draw(st.sampled_from(values))))
    groups = grouping(*values)
    for _ in range(4):
        picked = [groups.of[v.node] for v in data.draw(st.lists(st.sampled_from(values), min_size=2, max_size=3))]
        if groups.reason_against(picked) is None:
            groups.merge(picked)
    between = nx.DiGraph()
    between.add_nodes_from(groups.groups)
    for node, operands in groups.uses.base.items():
        sources = (groups.of[v.node].id for v in operands if v.node in groups.of)
        between.add_edges_from((i, groups.of[node].id) for i in sources if i != groups.of[node].id)
    assert nx.is_directed_acyclic_graph(between)
    for group in groups.groups.values():
        needed = {g.id for g in groups.groups.values() if groups.depends(group, g)}
        assert needed == nx.ancestors(between, group.id)
    order = [g.id for g in groups.sorted()]
    assert sorted(order) == sorted(groups.groups)
    assert all(order.index(a) < order.index(b) for a, b in between.edges)
