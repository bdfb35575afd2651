"""What an engine submits to its executor, step by step, and what its scheduler had decided before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.symbols import StepCounts
from inferir.runtime.engine.engine import Engine
from inferir.runtime.executor.base import Step
from inferir.runtime.requests.request import Scheduled

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ScheduledPart:
    """A request's part of a step: it computes `count` tokens from position `start` on. tokens: all it has; row: its row
    of the batch; blocks: of every KV group, the block ids that its manager says it has; ends: whether it gets a token.
    """

    request: str
    tokens: tuple[int, ...]
    prompt: int
    start: int
    count: int
    row: int
    blocks: tuple[tuple[int, ...], ...]
    ends: bool


@dataclass(frozen=True)
class SubmittedStep:
    """A step as it was submitted: copies of the leading parts of its inputs, which the counts say."""

    number: int
    parts: tuple[ScheduledPart, ...]
    counts: StepCounts
    inputs: Mapping[str, Array]


Watch = Callable[[SubmittedStep], None]


class _Watched:
    """The steps of one engine: `prepared` is told the schedule that a step is made from, `submitted` of the step."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self._inputs = engine.executor.inputs
        self._groups = engine.kv.groups
        self._watch = watch
        self._parts: tuple[ScheduledPart, ...] = ()
        self._steps = 0

    def prepared(self, scheduled: Sequence[Scheduled]) -> None:
        self._parts = tuple(
            ScheduledPart(
                request=s.request.id,
                tokens=(*s.request.prompt, *s.request.outputs),
                prompt=len(s.request.prompt),
                start=s.request.computed,
                count=s.tokens,
                row=s.request.row,
                blocks=tuple(tuple(table.ids) for table in s.request.blocks),
                ends=s.request.remaining == s.tokens,
            )
            for s in scheduled
        )
        self._steps += 1

    def submitted(self, step: Step) -> None:
        counts = step.counts
        sizes = {"ids": counts.tokens, "positions": counts.tokens, "lengths": counts.tokens}
        sizes |= {"rows": counts.rows, "argmax_rows": counts.argmax}
        for group in self._groups:
            sizes |= {group.slots: counts.tokens, group.block_tables: counts.seqs}
            sizes |= {group.items: counts.items} if group.items is not None else {}
        inputs = {name: self._inputs[name][:size].copy() for name, size in sizes.items() if name in self._inputs}
        self._watch(SubmittedStep(self._steps, self._parts, counts, inputs))


def watch_engine(engine: Engine, watch: Watch) -> None:
    """Have `watch` see every step that `engine` submits from now on, before it runs."""
    watched, prepare, submit = _Watched(engine, watch), engine.batch.prepare, engine.executor.submit

    def prepared(scheduled: Sequence[Scheduled]) -> Any:
        step = prepare(scheduled)
        watched.prepared(scheduled)
        return step

    def submitted(step: Step) -> Any:
        watched.submitted(step)
        return submit(step)

    for owner, name, method in ((engine.batch, "prepare", prepared), (engine.executor, "submit", submitted)):
        setattr(owner, name, method)


def expected_ids(parts: Sequence[ScheduledPart]) -> Array:
    return np.array([t for p in parts for t in p.tokens[p.start : p.start + p.count]], np.int64)


def expected_positions(parts: Sequence[ScheduledPart]) -> Array:
    return np.array([i for p in parts for i in range(p.start, p.start + p.count)], np.int64)
