"""Which ops a matrix product can do on its accumulators before it stores them."""

from __future__ import annotations

from inferir.ir.graph.dims import Dim
from inferir.ir.graph.graph import Node, Value
from inferir.ir.graph.registry import opdef
from inferir.passes.fuse.grouping import Grouping, Uses

_STORED = "the product would be stored twice or a kernel lies between"


def reason_against(anchor: Node, inside: set[Node], node: Node, grouping: Grouping) -> str | None:
    """Why `node` cannot join the product `anchor` and what is `inside` its kernel already, or None.

    A node may join if it works element by element at the place of the product's result (for halves that alternate: of
    one half), and its other operands are rows or vectors of the same width, or numbers.
    """
    if node.op == "tensor.view":
        source = node.operands[0]
        while source.op == "tensor.view" and source.node in grouping.uses.free:
            source = source.node.operands[0]
        return None if source.node in inside else "the view is not of the product itself"
    if not opdef(node.op).elementwise:
        return f"{node.op} needs more than one element of the product"
    uses = grouping.uses
    shape = _tile_shape(anchor)
    if node.types[0].shape != shape:
        return f"its result has shape {_text(node.types[0].shape)}, not {_text(shape)}"
    for operand in node.operands:
        if operand.op == "core.scalar":
            continue
        source = _through_half(anchor, operand)
        if source.node in inside:
            if source.type.shape != shape and operand is source:
                return "it reads the product and not its halves"
            continue
        if operand.node in uses.free:
            return f"{_base(operand, uses)} is read through a view"
        if operand.node in grouping.of and grouping.depends(grouping.of[operand.node], grouping.of[anchor]):
            return "another kernel lies between them"
        if operand.type.shape not in (shape, shape[1:], ()):
            return f"an operand has shape {_text(operand.type.shape)}"
    return None


def _tile_shape(anchor: Node) -> tuple[Dim, ...]:
    rows, n = anchor.types[0].shape
    return (rows, int(n) // int(anchor.attrs["interleave"]))


def _through_half(anchor: Node, value: Value) -> Value:
    """The product itself for one of its alternating halves, else `value`."""
    if anchor.attrs["interleave"] == 2 and value.op == "tensor.slice" and value.node.operands[0].node is anchor:
        half = int(anchor.attrs["n"]) // 2
        attrs = value.node.attrs
        if (attrs["start"], attrs["stop"], attrs["step"]) in ((0, half, 1), (half, 2 * half, 1)):
            return value.node.operands[0]
    return value


def _base(value: Value, uses: Uses) -> str:
    while value.node in uses.free and value.node.operands:
        value = value.node.operands[0]
    return f"a {value.op.split('.', 1)[1]}"


def _text(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def epilogue_of(anchor: Node, grouping: Grouping, views_only: bool) -> tuple[list[Node], dict[Node, str]]:
    """The largest epilogue of `anchor` with one result that keeps groups acyclic, and the reasons of readers that stay
    outside.
    """
    uses = grouping.uses
    inside: set[Node] = {anchor}
    chain: list[Node] = []
    refused: dict[Node, str] = {}
    queue = list(uses.readers[anchor.result])
    while queue:
        queue.sort(key=grouping.order.__getitem__)
        node = queue.pop(0)
        if node in inside or node in refused or opdef(node.op).anchor:
            continue
        reason = (
            "fusion is off"
            if views_only and node.op != "tensor.view"
            else reason_against(anchor, inside, node, grouping)
        )
        if reason is None and len(grouping.of[node].nodes) > 1:
            reason = "another product has taken it as epilogue"
        if reason is not None:
            refused[node] = reason
            continue
        inside.add(node)
        chain.append(node)
        if node.op != "tensor.view":
            queue += uses.readers[node.result]
    chain.sort(key=grouping.order.__getitem__)
    for length in range(len(chain), 0, -1):
        nodes = [anchor, *chain[:length]]
        if len(grouping.outputs(nodes)) == 1 and grouping.reason_against(grouping.of[n] for n in nodes) is None:
            refused.update(dict.fromkeys(chain[length:], _STORED))
            return chain[:length], refused
    refused.update(dict.fromkeys(chain, _STORED))
    return [], refused
