"""Reductions over any axes as reductions over the last one, for backends whose sweeps fold neighbours."""

from __future__ import annotations

from math import prod

from inferir.codegen.lower.rows import has_row, reduced_axes, static_shape
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import transform


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
