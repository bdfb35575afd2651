"""Records steps: when their phases end, and when each operation of the step program does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.runtime.executor.base import Executor, Step
from inferir.runtime.recording.recorded_steps import Recording, StepRecord
from inferir.runtime.recording.step_observer import StepObserver
from inferir.runtime.requests.request import Scheduled

_STEP_BYTES = 400  # of a record without what depends on the model


@dataclass(frozen=True)
class RecordLimits:
    """What a recording may grow to: steps, seconds, and bytes of memory."""

    steps: int = 2000
    seconds: float = 60.0
    bytes: int = 32 << 20


class Gauges(Protocol):
    """What the engine says of itself (`EngineStats`)."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_blocks(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...


class StepRecorder(StepObserver):
    """Records the steps of one engine, to which it is given as its observer, until `finish` or a limit.

    `items` are the KV groups whose attention work items are recorded.
    """

    def __init__(
        self,
        executor: Executor,
        gauges: Callable[[], Gauges],
        limits: RecordLimits | None = None,
        items: Sequence[KVCacheGroup] = (),
    ) -> None:
        self._executor = executor
        self._gauges = gauges
        self._limits = limits or RecordLimits()
        self._items = sorted({group.items for group in items if group.items})
        self._now = StepRecord(0, [])
        self._bytes = 0
        self._open = True
        executor.time_operations(True)
        begin = time.monotonic_ns()
        self._recording = Recording(begin, begin, [], executor.threads, gauges().kv_blocks)

    def begin(self) -> None:
        if self._open:
            self._now = StepRecord(time.monotonic_ns(), [])

    def planned(self, scheduled: Sequence[Scheduled]) -> None:
        if self._open:
            self._now.prompt_tokens = sum(s.tokens for s in scheduled if not s.request.outputs)
            self._now.requests = len(scheduled)
            self.ends("schedule")

    def ends(self, phase: str) -> None:
        if self._open:
            self._now.phases.append((phase, time.monotonic_ns()))

    def end(self, step: Step) -> None:
        if not self._open:
            self._recording.missed += 1
            return
        self.ends("deliver")
        record, gauges = self._now, self._gauges()
        record.tokens, record.decode = step.descriptor.tokens, step.descriptor.decode
        record.counts = tuple(step.counts)
        record.running, record.waiting = gauges.running, gauges.waiting
        record.kv_used = gauges.kv_blocks_used
        times = self._executor.operation_times
        if times is not None:
            record.ops_begin, record.ops_end, record.stamps = times.begin, times.end, times.stamps.tobytes()
            record.claims = b"" if times.claims is None else times.claims.tobytes()
        inputs = self._executor.inputs
        record.items = {name: inputs[name][: step.counts.items].tobytes() for name in self._items}
        self._recording.steps.append(record)
        self._bytes += _STEP_BYTES + len(record.stamps) + len(record.claims) + sum(map(len, record.items.values()))
        self._check(record.end)
        record.phases.append(("record", time.monotonic_ns()))  # last: nothing of the step is outside its phases

    def finish(self) -> Recording:
        """Stop, and give what was recorded. Calling it again gives the same."""
        if self._open:
            self._stop(time.monotonic_ns())
        return self._recording

    def _check(self, now: int) -> None:
        limits, steps = self._limits, len(self._recording.steps)
        if steps >= limits.steps:
            reached = f"{limits.steps} steps"
        elif self._bytes >= limits.bytes:
            reached = f"{limits.bytes >> 20} MiB"
        elif now - self._recording.begin >= limits.seconds * 1e9:
            reached = f"{limits.seconds:g} s"
        else:
            return
        self._recording.cut = f"the recording was cut at its limit of {reached}"
        self._stop(now)

    def _stop(self, now: int) -> None:
        self._open = False
        self._recording.end = now
        self._executor.time_operations(False)
