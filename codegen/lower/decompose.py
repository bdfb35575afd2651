"""Bodies in terms of `tensor.*` ops only: composite ops are replaced by their decomposition before they are lowered."""

from __future__ import annotations

from collections.abc import Container, Sequence

from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Attrs, Builder, Graph, Node, Value
from inferir.ir.graph.registry import Decompose, opdef
from inferir.ir.graph.rewrite import transform


def _softmax(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """exp(x - max x) / Σ exp(x - max x), in float32 and rounded once."""
    (x,) = operands
    dims, dtype = (attrs["dim"],), x.type.dtype
    x = x if dtype is DType.F32 else b.op("tensor.cast", x, dtype=DType.F32)
    e = b.op("tensor.exp", b.op("tensor.sub", x, b.op("tensor.max", x, dims=dims, keepdim=True)))
    y = b.op("tensor.div", e, b.op("tensor.sum", e, dims=dims, keepdim=True))
    return y if dtype is DType.F32 else b.op("tensor.cast", y, dtype=dtype)


def decompose(body: Graph, written: Container[str] = ()) -> Graph:
    """`body` with every op that has a decomposition replaced, until none is left but those in `written`, which a
    backend writes itself."""

    def form(node: Node) -> Decompose | None:
        if node.op in written:
            return None
        return _softmax if node.op == "tensor.softmax" else opdef(node.op).decompose

    def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
        found = form(node)
        return found(Builder(node.loc), operands, node.attrs) if found is not None else None

    while any(form(n) is not None for n in body.nodes):
        body = transform(body, visit)
    return body
