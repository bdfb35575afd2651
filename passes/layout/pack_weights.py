"""pack-weights: matrices in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferir.ir.errors import IRError
from inferir.ir.graph.graph import Builder, Graph, Node, Value, rebuild
from inferir.ir.graph.rewrite import Rebuilder
from inferir.ir.ops.common import axis
from inferir.ir.weight_format import FORMATS
from inferir.passes.context import PACKED, RAGGED, Pass, refuse


@dataclass(frozen=True)
class PackWeights(Pass):
    """`tensor.linear` becomes `tensor.linear_packed` on its weight in a format, and its bias a separate add.

    A product that is only read as two halves by one elementwise op (a merged gate and up projection) is packed with the
    halves alternating, so that a tile of it holds both operands of the activation.
    """

    interleave: bool = True
    format: str = "panels"

    name = "pack-weights"
    why = "kernels stream weights strictly in order"
    requires = frozenset({RAGGED})
    ensures = frozenset({PACKED})

    def run(self, graph: Graph) -> Graph:
        users = graph.users()
        halved = (
            {n: _halves(n, users, graph) for n in graph.nodes if n.op == "tensor.linear"} if self.interleave else {}
        )
        cut = {slice_: node for node, slices in halved.items() for slice_ in slices}

        def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node.op == "tensor.linear":
                return self._packed(node, operands, 2 if halved.get(node) else 1)
            if node in cut and len(cut[node].operands) == 3:
                return _sliced_bias(node, operands[0])
            return None

        return Rebuilder(graph).run(visit).graph_with()

    def _packed(self, node: Node, operands: tuple[Value, ...], parts: int) -> Value:
        x, w, *bias = operands
        if x.type.rank != 2:
            raise refuse(self.name, node, f"product of {x.type}; only rows of vectors [T, K] are supported")
        b = Builder(node.loc)
        try:
            stored = FORMATS.get(self.format).transform(b, w, interleave=parts)
        except IRError as error:
            raise refuse(self.name, node, f"weight {w.type} cannot be packed: {error}") from None
        out = b.op("tensor.linear_packed", x, *stored, n=w.type.shape[0], format=self.format, interleave=parts)
        return b.op("tensor.add", out, bias[0]) if bias else out


def _halves(node: Node, users: Mapping[Value, Sequence[Node]], graph: Graph) -> tuple[Node, ...]:
    """The two slices that read the halves of `node` for one elementwise op, or nothing."""
    n = node.types[0].shape[-1]
    slices = list(users[node.result])
    if node.result in graph.outputs or len(slices) != 2 or not isinstance(n, int) or n % 2:
        return ()
    if any(s.op != "tensor.slice" or axis(s.attrs["dim"], s.types[0].rank) != s.types[0].rank - 1 for s in slices):
        return ()
    if {(s.attrs["start"], s.attrs["stop"], s.attrs["step"]) for s in slices} != {(0, n // 2, 1), (n // 2, n, 1)}:
        return ()
    readers = {u for s in slices for u in users[s.result]}
    if len(readers) != 1 or any(s.result in graph.outputs for s in slices) or next(iter(readers)).op != "nn.gated_act":
        return ()
    return tuple(slices)


def _sliced_bias(node: Node, biased: Value) -> Value:
    """A slice of (product + bias) as slice of product + slice of bias, so that the halves stay separate."""
    out, bias = biased.node.operands
    half = rebuild(node, (out,)).result
    b = Builder(node.loc)
    return b.op(
        "tensor.add", half, b.op("tensor.slice", bias, dim=0, start=node.attrs["start"], stop=node.attrs["stop"])
    )
