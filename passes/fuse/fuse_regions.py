"""fuse-regions: the graph becomes a graph of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import ROWWISE, opdef
from inferir.passes.context import PACKED, PAGED, REGIONS, WEIGHTS_FOLDED, Pass, PassContext, describe
from inferir.passes.fuse.epilogue import epilogue_of
from inferir.passes.fuse.grouping import Group, Grouping, find_uses
from inferir.passes.fuse.region_bodies import input_roles, region


@dataclass(frozen=True)
class FuseRegions(Pass):
    """Groups nodes into `kernel.region`s, in three rounds, never so that kernels would wait for each other in a circle:

    1. a matrix product takes the elementwise ops behind it as its epilogue, as long as the kernel keeps one result;
    2. row-wise ops join the row-wise kernel that makes their operands, if both run over the same rows;
    3. row-wise kernels that read the same value over the same rows become one.

    Views are repeated inside every kernel that reads through them. With `fuse=False` every op is a kernel of its own.
    """

    fuse: bool = True
    context: PassContext = field(default_factory=PassContext, compare=False, repr=False)

    name = "fuse-regions"
    why = "intermediate rows stay in registers and cache instead of memory"
    requires = frozenset({PAGED, PACKED, WEIGHTS_FOLDED})
    ensures = frozenset({REGIONS})
    idempotent = False

    def run(self, graph: Graph) -> Graph:
        free_ops = frozenset() if self.fuse else frozenset({"tensor.cast"})
        uses = find_uses(graph, free_ops, share_lookups=self.fuse)
        grouping = Grouping(uses)
        for node in uses.nodes:
            if opdef(node.op).anchor:
                self._epilogue(node, grouping)
        if self.fuse:
            for node in uses.nodes:
                self._join_producers(node, grouping)
            for value, readers in uses.readers.items():
                if not opdef(value.op).source:
                    self._join_readers(list(readers), grouping)
        return emit(graph, grouping, input_roles(self.context.kv))

    def _epilogue(self, anchor: Node, grouping: Grouping) -> None:
        if opdef(anchor.op).contraction:
            chain, refused = epilogue_of(anchor, grouping, views_only=not self.fuse)
            if self.fuse:
                for node, reason in refused.items():
                    self.context.refuse(self.name, f"{describe(node)} behind {describe(anchor)}", reason)
        else:
            readers = grouping.uses.readers[anchor.result]
            chain = [r for r in readers if r.op == "tensor.view" and len(readers) == 1]
        if chain:
            grouping.merge([grouping.of[anchor], *(grouping.of[n] for n in chain)])

    def _join_producers(self, node: Node, grouping: Grouping) -> None:
        if grouping.of[node].anchor != ROWWISE:
            return
        for producer in grouping.producers(node):
            group = grouping.of[node]
            if producer.id in grouping.groups and producer is not group and producer.anchor == ROWWISE:
                self._try(producer, group, node, grouping)

    def _join_readers(self, readers: list[Node], grouping: Grouping) -> None:
        groups = [g for g in dict.fromkeys(grouping.of[n] for n in readers) if g.anchor == ROWWISE]
        for other in groups[1:]:
            if other.id in grouping.groups and grouping.of[groups[0].nodes[0]] is not other:
                self._try(grouping.of[groups[0].nodes[0]], other, other.nodes[0], grouping)

    def _try(self, first: Group, second: Group, node: Node, grouping: Grouping) -> None:
        if first.symbol is None or first.symbol != second.symbol:
            reason: str | None = f"different rows: {first.symbol} and {second.symbol}"
        else:
            reason = grouping.reason_against([first, second])
        if reason is None:
            grouping.merge([first, second])
        else:
            self.context.refuse(self.name, f"{describe(node)} with {describe(first.nodes[-1])}", reason)


def emit(graph: Graph, grouping: Grouping, roles: Mapping[str, str]) -> Graph:
    """The graph of regions."""
    env: dict[Value, Value] = {v: v for n in graph.nodes if opdef(n.op).source for v in n.results}
    for group in grouping.sorted():
        env.update(region(group, grouping.uses, grouping.outputs(group.nodes), env, roles))
    return Graph(graph.inputs, tuple(env[v] for v in graph.outputs), graph.output_names, graph.name)
