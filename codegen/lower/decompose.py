"""Bodies in terms of `tensor.*` ops only: composite ops are replaced by their decomposition before they are lowered."""

from __future__ import annotations

from collections.abc import Container

from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.registry import Decompose, opdef
from inferir.ir.graph.rewrite import transform


def decompose(body: Graph, written: Container[str] = ()) -> Graph:
    """`body` with every op that has a decomposition replaced, until none is left but those in `written`, which a
    backend writes itself."""

    def form(node: Node) -> Decompose | None:
        return None if node.op in written else opdef(node.op).decompose

    def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
        found = form(node)
        return found(Builder(node.loc), operands, node.attrs) if found is not None else None

    while any(form(n) is not None for n in body.nodes):
        body = transform(body, visit)
    return body
