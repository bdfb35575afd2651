"""recognise-gated-act: act(gate) · up."""

from __future__ import annotations

from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.rewrite import transform
from inferir.ir.ops.nn import GATES
from inferir.passes.context import RAGGED, Pass


class RecogniseGatedAct(Pass):
    """act(gate)·up with two different values of one type becomes `nn.gated_act`."""

    name = "recognise-gated-act"
    why = "marks gate and up projections, which are then merged and packed alternately"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        return transform(graph, _visit)


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
    if node.op != "tensor.mul":
        return None
    for act, up in (operands, operands[::-1]):
        kind = _kind(act)
        if kind is None or up is act:  # act(x)² has no second operand
            continue
        gate = act.node.operands[0]
        if gate is not up and gate.type == up.type and up.op != "core.scalar":
            return Builder(node.loc).op("nn.gated_act", gate, up, kind=kind)
    return None


def _kind(value: Value) -> str | None:
    if value.op == "tensor.gelu":
        return "gelu_tanh" if value.node.attrs["approximate"] == "tanh" else "gelu"
    plain = value.op.removeprefix("tensor.")
    return plain if plain in GATES else None
