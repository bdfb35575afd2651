"""The first pass after which the graph no longer computes eager's logits.

The graph after every pass is kept; those after the first k are interpreted on the real weights. A binary search finds
the first k that is out of bound, given that k - 1 is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from inferir.ir.errors import InferirError
from inferir.ir.graph.graph import Graph
from inferir.passes.context import PassOptions
from inferir.passes.manager import PipelineResult, run_pipeline
from inferir.verify.cases import Part
from inferir.verify.divergence import Rows
from inferir.verify.logit_bound import LogitBound, Reach
from inferir.verify.staged_graph import MadeWeights, StagedGraph

Judge = Callable[[int], Reach]


@dataclass(frozen=True)
class Stage:
    """The graph after pass number `number` of the pipeline, 0 for the captured one. turn: which of the passes of that
    name it is, from 1, of `turns`.
    """

    number: int
    name: str
    graph: Graph
    turn: int = 1
    turns: int = 1

    @property
    def title(self) -> str:
        return self.name if self.turns == 1 else f"{self.name} ({self.turn} of {self.turns})"


@dataclass(frozen=True)
class Pipeline:
    """A captured graph, its weights, and what the pipeline makes of it."""

    stages: tuple[Stage, ...]
    result: PipelineResult
    options: PassOptions
    checkpoint: Mapping[str, torch.Tensor]

    @staticmethod
    def run(graph: Graph, options: PassOptions, checkpoint: Mapping[str, torch.Tensor]) -> Pipeline:
        """Run the pipeline, keeping the graph after every pass. Raises `PassError` where a pass refuses the graph."""
        graphs = [("capture", graph)]
        result = run_pipeline(graph, None, options, print_after=lambda name, after: graphs.append((name, after)))
        names = [name for name, _ in graphs]
        stages = tuple(
            Stage(i, name, graph, names[: i + 1].count(name), names.count(name))
            for i, (name, graph) in enumerate(graphs)
        )
        return Pipeline(stages, result, options, checkpoint)

    @cached_property
    def weights(self) -> MadeWeights:
        return MadeWeights(self.checkpoint, self.result.transforms)

    def staged(self, graph: Graph) -> StagedGraph:
        return StagedGraph(graph, self.weights, self.result.kv, self.options.limits)


@dataclass
class PassSearch:
    """The search over one pipeline. sequences, steps: what is run."""

    pipeline: Pipeline
    bound: LogitBound
    sequences: Sequence[Sequence[int]]
    steps: Sequence[Sequence[Part]]
    say: Callable[[int, int], None] = lambda done, total: None
    reaches: dict[int, Reach] = field(default_factory=dict)

    def first(self) -> int | None:
        """Number of the first stage that is out of bound, 0 for the captured graph; None if the last one is not."""
        low, high = 0, len(self.pipeline.stages) - 1
        most = 2 + high.bit_length()
        if not self._reach(0, most).passed:
            return 0
        if self._reach(high, most).passed:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._reach(middle, most).passed:
                low = middle
            else:
                high = middle
        return high

    def _reach(self, number: int, most: int) -> Reach:
        if number not in self.reaches:
            self.reaches[number] = self._measure(self.pipeline.stages[number].graph)
            self.say(len(self.reaches), max(most, len(self.reaches)))
        return self.reaches[number]

    def _measure(self, graph: Graph) -> Reach:
        return measure(lambda: self.pipeline.staged(graph).logits(self.sequences, self.steps), self.bound)


def measure(logits: Callable[[], list[Rows]], bound: LogitBound) -> Reach:
    """How far logits are from the bound; a graph that cannot be run at all is infinitely far."""
    try:
        return bound.reach(logits())
    except (InferirError, RuntimeError, ValueError, IndexError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Reach(f"cannot be interpreted ({line}): largest difference of logits", float("inf"), 0.0)
