"""What merge-gate-up and merge-qkv share: several products of one value become one product and slices."""

from __future__ import annotations

from collections.abc import Sequence

from inferir.ir.graph.graph import Builder, Node, Provenance, Value


def reason_against(linears: Sequence[Node]) -> str | None:
    """Why these `tensor.linear` nodes on one input cannot become one, or None."""
    if len({len(n.operands) for n in linears}) != 1:
        return "some have a bias and some have not"
    if len({n.operands[1].type.dtype for n in linears}) != 1:
        return "weights have different element types"
    if any(not isinstance(n.operands[1].type.shape[0], int) for n in linears):
        return "a weight has no static shape"
    return None


def merged(x: Value, linears: Sequence[Node]) -> list[Value]:
    """Slices of one `tensor.linear` on x, in the order of `linears`, whose weights (and biases) it concatenates."""
    b = Builder(Provenance.join(n.loc for n in linears))
    weight = b.op("tensor.cat", *(n.operands[1] for n in linears), dim=0)
    bias = [b.op("tensor.cat", *(n.operands[2] for n in linears), dim=0)] if len(linears[0].operands) == 3 else []
    out = b.op("tensor.linear", x, weight, *bias)
    last = out.type.rank - 1
    slices = []
    start = 0
    for node in linears:
        stop = start + int(node.operands[1].type.shape[0])
        slices.append(Builder(node.loc).op("tensor.slice", out, dim=last, start=start, stop=stop))
        start = stop
    return slices
