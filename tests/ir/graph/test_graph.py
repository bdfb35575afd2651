"""Nodes, attributes, graphs, topological order and the structural hash."""

import dataclasses

import pytest

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Provenance, rebuild
from inferir.ir.graph.types import TensorType

X = TensorType((T, 8), DType.F32)


def chain(loc: str = "", name: str = "main", width: int = 8, value: float = 2.0, scale_first: bool = False) -> Graph:
    b = Builder(Provenance(loc, "op"))
    x = b.input("x", TensorType((T, width), DType.F32))
    c = b.scalar(value)
    y = b.op("tensor.mul", *((c, x) if scale_first else (x, c)))
    return Graph((x,), (b.op("tensor.exp", y),), ("y",), name)


def test_nodes_are_in_topological_order_and_shared_once() -> None:
    b = Builder()
    x, unused = b.input("x", X), b.input("unused", X)
    y = b.op("tensor.exp", x)
    z = b.op("tensor.add", y, y)
    g = Graph((unused, x), (z, y))
    assert [n.op for n in g.nodes] == ["core.input", "core.input", "tensor.exp", "tensor.add"]
    assert g.input_names == ("unused", "x")
    assert g.output_names == ("out0", "out1")
    assert g.output("out1") is y
    assert g.users()[y] == [z.node, z.node]
    assert g.users()[unused] == []


def test_deep_graphs_do_not_recurse() -> None:
    b = Builder()
    x = v = b.input("x", X)
    for _ in range(5000):
        v = b.op("tensor.neg", v)
    assert len(Graph((x,), (v,)).nodes) == 5001


def test_an_unlisted_input_is_named() -> None:
    b = Builder()
    x, y = b.input("x", X), b.input("hidden", X)
    with pytest.raises(IRError, match="'hidden' is used but not listed"):
        Graph((x,), (b.op("tensor.add", x, y),))


def test_output_names_must_match() -> None:
    b = Builder()
    x = b.input("x", X)
    with pytest.raises(IRError, match="1 outputs but 2 names"):
        Graph((x,), (x,), ("a", "b"))


def test_nodes_are_frozen() -> None:
    node = chain().nodes[-1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.op = "tensor.log"  # type: ignore[misc]
    with pytest.raises(IRError, match="must be immutable"):
        Attrs({"shape": {"a": 1}})
    assert Attrs({"shape": [1, [2]]})["shape"] == (1, (2,))


def test_attrs_tell_numbers_of_different_kinds_apart() -> None:
    assert Attrs({"a": 1, "b": (T, "x")}) == Attrs({"b": (T, "x"), "a": 1})
    for one, other in ((1, 1.0), (1, True), (0.0, -0.0), ((1,), (True,))):
        assert Attrs({"value": one}) != Attrs({"value": other})
    assert hash(Attrs({"a": 1, "b": 2})) == hash(Attrs({"b": 2, "a": 1}))
    assert Attrs({"a": 1}).replace(a=2)["a"] == 2


def test_hash_ignores_names_of_the_graph_and_provenance() -> None:
    assert chain("model.layers.0", "first").structural_hash() == chain("model.layers.1", "second").structural_hash()


@pytest.mark.parametrize(
    "other",
    [chain(width=16), chain(value=3.0), chain(value=2), chain(scale_first=True)],
    ids=["type", "attribute", "kind of number", "operand order"],
)
def test_hash_sees_content(other: Graph) -> None:
    assert other.structural_hash() != chain().structural_hash()


def test_hash_sees_sharing_output_order_and_bodies() -> None:
    b = Builder()
    x = b.input("x", X)
    y, z = b.op("tensor.exp", x), b.op("tensor.neg", x)
    assert Graph((x,), (y, z)).structural_hash() != Graph((x,), (z, y)).structural_hash()
    shared = Graph((x,), (b.op("tensor.add", y, y),))
    twice = Graph((x,), (b.op("tensor.add", y, b.op("tensor.exp", x)),))
    assert shared.structural_hash() != twice.structural_hash()

    def region(value: float) -> Graph:
        node = b.node("kernel.region", (x,), {"anchor": "rowwise", "body": chain(value=value), "name": "k"})
        return Graph((x,), node.results)

    assert region(2.0).structural_hash() == region(2.0).structural_hash()
    assert region(2.0).structural_hash() != region(3.0).structural_hash()


def test_one_result_is_demanded_where_one_is_meant() -> None:
    b = Builder()
    x = b.input("x", X)
    body = Graph((x,), (b.op("tensor.exp", x), b.op("tensor.neg", x)))
    node = b.node("kernel.region", (x,), {"anchor": "rowwise", "body": body, "name": "k"})
    with pytest.raises(IRError, match="2 results, expected one"):
        _ = node.result


def test_rebuild_infers_types_anew_and_keeps_unchanged_nodes() -> None:
    b = Builder(Provenance("m", "exp"))
    x = b.input("x", X)
    node = b.op("tensor.exp", x).node
    assert rebuild(node, (x,)) is node
    wide = rebuild(node, (b.input("x", TensorType((T, 99), DType.F32)),))
    assert wide.types == (TensorType((T, 99), DType.F32),)
    assert wide.loc == node.loc


def test_provenance_of_a_group_is_its_common_module() -> None:
    parts = [Provenance("model.layers.3.mlp.gate", "linear"), Provenance("model.layers.3.mlp.up", "linear")]
    assert str(Provenance.join([*parts, Provenance("model.layers.3.mlp", "mul")])) == "model.layers.3.mlp:linear+mul"
    assert Provenance.join([]) == Provenance()
