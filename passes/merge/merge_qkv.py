"""merge-qkv: the projections of one value that attention reads become one product."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import Rebuilder
from inferir.passes.context import RAGGED, Pass, PassContext, describe
from inferir.passes.merge.merge_linears import merged, reason_against


@dataclass(frozen=True)
class MergeQkv(Pass):
    """`tensor.linear` nodes on one value whose results reach captured attention without another product become one,
    with slices.
    """

    context: PassContext = field(default_factory=PassContext, compare=False, repr=False)

    name = "merge-qkv"
    why = "one pass over the normalised input instead of three"
    requires = frozenset({RAGGED})

    def run(self, graph: Graph) -> Graph:
        into = _reaches_attention(graph)
        siblings: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            if node.op == "tensor.linear" and node in into:
                siblings.setdefault(node.operands[0], []).append(node)
        groups: dict[Node, list[Node]] = {}
        for nodes in siblings.values():
            reason = reason_against(nodes)
            if len(nodes) > 1 and reason is not None:
                self.context.refuse(self.name, describe(nodes[0]), reason)
            elif len(nodes) > 1:
                groups.update(dict.fromkeys(nodes, nodes))
        if not groups:
            return graph
        ready: dict[Node, Value] = {}

        def visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
            if node not in groups:
                return None
            if node not in ready:
                ready.update(zip(groups[node], merged(operands[0], groups[node]), strict=True))
            return ready[node]

        return Rebuilder(graph).run(visit).graph_with()


def _reaches_attention(graph: Graph) -> set[Node]:
    """Nodes with a path to captured attention that no other product interrupts."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "attn.attention" or (node in found and not opdef(node.op).contraction):
            found.update(v.node for v in node.operands)
    return found
