"""merge-gate-up: the gate and up projections of a gated MLP become one product."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferir.ir.graph.graph import Graph, Node, Value, rebuild
from inferir.ir.graph.rewrite import transform
from inferir.passes.context import RAGGED, Pass, PassContext, describe
from inferir.passes.merge.merge_linears import merged, reason_against


@dataclass(frozen=True)
class MergeGateUp(Pass):
    """gated_act(linear(x, g), linear(x, u)) reads both operands from one linear with the weights below each other, gate
    first.
    """

    context: PassContext = field(default_factory=PassContext, compare=False, repr=False)

    name = "merge-gate-up"
    why = "one pass over the input, and the activation becomes an epilogue of the product"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        users = graph.users()

        def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node.op != "nn.gated_act" or any(v.op != "tensor.linear" for v in operands):
                return None
            gate, up = operands
            reason = reason_against([gate.node, up.node])
            if gate.node.operands[0] is not up.node.operands[0]:
                reason = "gate and up read different values"
            elif any(len(users[v]) > 1 or v in graph.outputs for v in node.operands):
                reason = "a projection has other readers"
            if reason is not None:
                self.context.refuse(self.name, describe(node), reason)
                return None
            slices = merged(gate.node.operands[0], [gate.node, up.node])
            return rebuild(node, tuple(slices)).result

        return transform(graph, visit)
