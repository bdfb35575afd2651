"""Bodies before they are lowered: composite ops become `tensor.*` ops, and reductions over any axes, for backends whose
sweeps fold neighbours, reductions over the last one.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from inferir.codegen.lower.rows import has_row, reduced_axes, static_shape
from inferir.ir.graph.dims import Dim
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


def over_last_axis(body: Graph, row: Dim) -> Graph:
    """`body` with the reduced axes of every reduction moved to the end and joined."""

    def moved(node: Node) -> bool:
        if not opdef(node.op).reduction:
            return False
        return reduced_axes(node, row) != (len(static_shape(node.operands[0].type, row)) - 1,)

    def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
        if not moved(node):
            return None
        (x,), b = operands, Builder(node.loc)
        shape, lead = static_shape(x.type, row), x.type.shape[:1] if has_row(x.type, row) else ()
        axes = reduced_axes(node, row)
        kept = [i for i in range(len(shape)) if i not in axes]
        perm = [i + len(lead) for i in (*kept, *axes)]
        turned = b.op("tensor.permute", x, perm=(*range(len(lead)), *perm))
        joined = b.op("tensor.view", turned, shape=(*lead, *(shape[i] for i in kept), prod(shape[i] for i in axes)))
        which = {"dim": -1} if "dim" in node.attrs else {"dims": (-1,)}
        folded = b.op(node.op, joined, keepdim=False, **which)
        return b.op("tensor.view", folded, shape=node.types[0].shape)

    return transform(body, visit) if any(moved(n) for n in body.nodes) else body
