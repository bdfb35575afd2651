"""Running a graph of any stage of the pipeline with the reference interpreter: as captured, over one sequence at a
time, or in steps over a paged cache.

What depends on weights alone is computed once. That is done here, not with the passes' own fold, which is among what is
judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.symbols import Limits
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import Rebuilder
from inferir.verify.cases import Part
from inferir.verify.divergence import Rows
from inferir.verify.simulated_steps import SimulatedSteps, given_to

_HOISTED = "inferir.hoisted."

Observe = Callable[[Node, tuple[Any, ...]], None]


class MadeWeights(Mapping[str, torch.Tensor]):
    """Weights by name: those that a transform makes, and the checkpoint's. A transform is evaluated once."""

    def __init__(self, checkpoint: Mapping[str, torch.Tensor], transforms: Mapping[str, Graph]) -> None:
        self._checkpoint = checkpoint
        self._transforms = transforms
        self._made: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._transforms:
            return self._checkpoint[name]
        if name not in self._made:
            transform = self._transforms[name]
            sources = {n: self._checkpoint[n] for n in transform.weights()}
            with torch.no_grad():
                (self._made[name],) = interpret(transform, {}, sources).values()
        return self._made[name]

    def __iter__(self) -> Any:
        return iter({**dict.fromkeys(self._checkpoint), **dict.fromkeys(self._transforms)})

    def __len__(self) -> int:
        return len({*self._checkpoint, *self._transforms})


class StagedGraph:
    """A graph with the weights that it needs. groups: those of its caches, once it has any."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, torch.Tensor], groups: tuple[KVCacheGroup, ...], limits: Limits
    ) -> None:
        self.paged = any(group.slots in graph.input_names for group in groups)
        caches = {name for group in groups for name, *_ in group.caches()}
        wanted = [n for n in graph.output_names if n == "logits" or n in caches]
        graph = Graph(graph.inputs, tuple(map(graph.output, wanted)), tuple(wanted), graph.name)
        graph, values = hoisted(graph)
        with torch.no_grad():
            self._held = interpret(values, {}, {n: weights[n] for n in values.weights()})
        self._held.update({n: weights[n] for n in graph.weights() if not n.startswith(_HOISTED)})
        self.graph = graph
        self._groups = groups if self.paged else ()
        self._limits = limits

    def logits(
        self, sequences: Sequence[Sequence[int]], steps: Sequence[Sequence[Part]], observe: Observe | None = None
    ) -> list[Rows]:
        """Logits [tokens, V] of each sequence, computed in `steps`; before there is a cache, of a sequence at once."""
        vocabulary = int(self.graph.output("logits").type.shape[1])
        simulated = SimulatedSteps(sequences, self._groups, self._limits, vocabulary, all_rows=True)
        out = [torch.full((len(s), vocabulary), float("nan")) for s in sequences]
        if not self.paged:
            steps = [[Part("", "", i, 0, len(s))] for i, s in enumerate(sequences)]
        for parts in steps:
            step = simulated.step(parts)
            values = {**step.values, **(simulated.caches() if self.paged else {})}
            with torch.no_grad():
                found = interpret(self.graph, given_to(self.graph, values), self._held, observe)
            simulated.keep(found)
            tokens = [(p.sequence, i) for p in parts for i in range(p.start, p.start + p.count)]
            rows = step.rows if "rows" in self.graph.input_names else range(len(tokens))
            for row, token in zip(found["logits"].float(), rows, strict=True):
                sequence, position = tokens[token]
                out[sequence][position] = row
        return [rows.numpy() for rows in out]


def hoisted(graph: Graph) -> tuple[Graph, Graph]:
    """`graph` with every computation on weights alone replaced by a weight, and a graph that computes those by name."""
    static: set[Node] = set()
    for node in graph.nodes:
        known = all(isinstance(d, int) for t in node.types for d in t.shape)
        if node.op != "core.input" and known and all(v.node in static for v in node.operands):
            static.add(node)
    users = graph.users()
    frontier = [
        value
        for node in graph.nodes
        if node in static and not opdef(node.op).source
        for value in node.results
        if value in graph.outputs or any(u not in static for u in users[value])
    ]
    names = {value: f"{_HOISTED}{i}" for i, value in enumerate(frontier)}
    env: dict[Value, Value] = {v: Builder(v.node.loc).weight(name, v.type) for v, name in names.items()}
    rest = Rebuilder(graph, env).run(lambda node, operands: None).graph_with() if env else graph
    return rest, Graph((), tuple(frontier), tuple(names.values()), graph.name)
