"""Graphs that the builder would not make, found by the verifier."""

from collections.abc import Callable

import pytest

from inferir.ir.errors import VerifyError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Provenance, Value
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify

X = TensorType((T, 8), DType.F32)
HERE = Provenance("model.layers.1", "aten.exp")


def graph_of(make: Callable[[Builder, Value], Value]) -> Graph:
    b = Builder()
    x = b.input("x", X)
    return Graph((x,), (make(b, x),))


def raw(op: str, operands: tuple[Value, ...], attrs: dict[str, object], *types: TensorType) -> Value:
    return Node(op, operands, Attrs(attrs), types, HERE).results[0]


def nested(body: Graph, *operands: Value) -> Value:
    attrs = {"anchor": "rowwise", "body": body, "name": "k"}
    return raw("kernel.region", operands, attrs, *(v.type for v in body.outputs))


def test_good_graphs_pass() -> None:
    body = graph_of(lambda b, x: b.op("tensor.exp", x))
    verify(graph_of(lambda b, x: nested(body, b.op("tensor.mul", x, b.weight("w", TensorType((8,), DType.F32))))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: raw("tensor.nope", (x,), {}, X), "unknown op"),
        (lambda b, x: raw("tensor.exp", (x, x), {}, X), "2 operands"),
        (lambda b, x: raw("tensor.exp", (x,), {"fast": 1}, X), "unknown attribute 'fast'"),
        (lambda b, x: raw("tensor.sum", (x,), {"dims": (0,)}, X), "attribute 'keepdim' is missing"),
        (lambda b, x: raw("tensor.exp", (x,), {}, TensorType((S, 8), DType.F32)), r"has type f32\[S, 8\], should have"),
        (lambda b, x: raw("tensor.exp", (x,), {}, TensorType((T, 8), DType.BF16)), r"has type bf16"),
        (lambda b, x: raw("tensor.exp", (x,), {}, X, X), "has type"),
        (lambda b, x: raw("core.weight", (), {}, X), "attribute 'name' is missing"),
        (lambda b, x: raw("core.scalar", (), {"value": "1"}, TensorType((), DType.F64)), "attribute 'value'"),
        (
            lambda b, x: raw("tensor.div", (b.op("tensor.cast", x, dtype=DType.I32), b.scalar(2)), {}, X),
            "insert a cast",
        ),
    ],
)
def test_a_bad_node_is_named_with_its_place(make: Callable[[Builder, Value], Value], message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        verify(graph_of(make))
    assert "graph main, at model.layers.1:aten.exp: " in str(caught.value)


def test_a_bad_node_is_found_before_a_good_result() -> None:
    with pytest.raises(VerifyError, match=r"unknown op 'x\.y'"):
        verify(graph_of(lambda b, x: b.op("tensor.exp", raw("x.y", (x,), {}, X))))


def test_bodies_are_verified() -> None:
    body = graph_of(lambda b, x: raw("tensor.exp", (x,), {}, TensorType((T, 9), DType.F32)))
    with pytest.raises(VerifyError, match=r"tensor\.exp: has type f32\[T, 9\]"):
        verify(graph_of(lambda b, x: nested(body, x)))


@pytest.mark.parametrize("anchor", ["rows", ""])
def test_regions_check_anchor_operands_and_weights(anchor: str) -> None:
    body = graph_of(lambda b, x: b.op("tensor.exp", x))
    b = Builder()
    narrow = b.input("x", TensorType((T, 4), DType.F32))
    for operands, bad_body, name, message in (
        ((), body, "rowwise", "0 operands for a body with 1 inputs"),
        ((narrow,), body, "rowwise", r"operand 0 is f32\[T, 4\], the body expects f32\[T, 8\]"),
        ((body.inputs[0],), body, anchor, "anchor"),
        (
            (body.inputs[0],),
            graph_of(lambda b, x: b.op("tensor.add", x, b.weight("w", X))),
            "rowwise",
            "holds a weight",
        ),
    ):
        node = raw("kernel.region", operands, {"anchor": name, "body": bad_body, "name": "k"}, X)
        with pytest.raises(VerifyError, match=message):
            verify(Graph((*(v for v in operands if v.op == "core.input"),), (node,)))


def test_names_are_distinct_and_weights_have_one_type() -> None:
    b = Builder()
    x, again = b.input("x", X), b.input("x", X)
    with pytest.raises(VerifyError, match="input 'x' is listed twice"):
        verify(Graph((x, again), (b.op("tensor.add", x, again),)))
    with pytest.raises(VerifyError, match="output 'y' is listed twice"):
        verify(Graph((x,), (x, x), ("y", "y")))
    wide, flat = b.weight("w", X), b.weight("w", TensorType((8,), DType.F32))
    with pytest.raises(VerifyError, match=r"weight 'w' is f32\[T, 8\] and f32\[8\]"):
        verify(Graph((x,), (b.op("tensor.add", wide, b.op("tensor.add", x, flat)),)))
