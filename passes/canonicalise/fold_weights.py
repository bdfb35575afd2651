"""fold-weights: what depends on weights alone is computed once, when the artifact is written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from inferir.ir.graph.graph import Builder, Graph, Node, Value, topological
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import Rebuilder
from inferir.passes.context import WEIGHTS_FOLDED, Pass, PassContext


@dataclass(frozen=True)
class FoldWeights(Pass):
    """Every maximal computation on weights and constants becomes one new `core.weight`; its transform, a graph without
    inputs over the checkpoint's weights with the output `value`, goes to `context.transforms` under the new name.
    """

    context: PassContext = field(default_factory=PassContext, compare=False, repr=False)

    name = "fold-weights"
    why = "packing, merging and tables cost nothing in a step"
    ensures = frozenset({WEIGHTS_FOLDED})

    def run(self, graph: Graph) -> Graph:
        static = static_nodes(graph)
        env: dict[Value, Value] = {}
        taken = set(graph.weights()) | set(self.context.transforms)
        frontier: dict[Value, None] = {}
        computed = {n for n in static if not opdef(n.op).source}
        for node in graph.nodes:
            if node not in static:
                frontier.update(dict.fromkeys(v for v in node.operands if v.node in computed))
        frontier.update(dict.fromkeys(v for v in graph.outputs if v.node in computed))
        for value in frontier:
            name = _fresh(_name(value), taken)
            self.context.transforms[name] = Graph((), (value,), ("value",), name)
            env[value] = Builder(value.node.loc).weight(name, value.type)
        if not env:
            return graph
        return Rebuilder(graph, env).run(lambda node, operands: None).graph_with()


def static_nodes(graph: Graph) -> set[Node]:
    """Nodes that depend on no input, weights and other sources included."""
    out: set[Node] = set()
    for node in graph.nodes:
        if node.op != "core.input" and all(v.node in out for v in node.operands):
            if all(isinstance(d, int) for t in node.types for d in t.shape):
                out.add(node)
    return out


def _name(value: Value) -> str:
    """The weights it is made of, shortened to their common path, and the last op that matters."""
    nodes = topological([], [value])
    sources = list(dict.fromkeys(str(n.attrs["name"]) for n in nodes if n.op == "core.weight"))
    node = value.node
    while opdef(node.op).quiet and not opdef(node.operands[0].op).source:
        node = node.operands[0].node
    return f"{_joined(sources) or 'constant'}.{opdef(node.op).result_names[value.index]}"


def _joined(names: list[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    paths = [n.split(".") for n in names]
    same = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    common = [level[0] for level in same]
    parts = dict.fromkeys(p[len(common)] for p in paths if len(p) > len(common))
    return ".".join([*common, "+".join(parts)])


def _fresh(name: str, taken: set[str]) -> str:
    out, k = name, 2
    while out in taken:
        out, k = f"{name}.{k}", k + 1
    taken.add(out)
    return out
