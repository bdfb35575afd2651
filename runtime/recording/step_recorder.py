"""Records steps: when their phases end, and when each operation of the step program does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.runtime.executor.base import Executor, Step
from inferir.runtime.recording.step_observer import StepObserver
from inferir.runtime.requests.request import Scheduled

_STEP_BYTES = 400  # of a record without what depends on the model


class StepRecord(msgspec.Struct, array_like=True):
    """One step. Times are nanoseconds of the monotonic clock.

    begin: when it began; phases: each one's name and end, in order. tokens, decode: its descriptor; prompt_tokens: of
    these, tokens of prompts. counts: as `StepCounts`. requests: that took part. running, waiting, kv_used: requests and
    KV blocks in use after it. ops_begin, ops_end: around the step program; stamps: int64[operations + 1], the cycle
    counter at the program's start and after each operation; claims: int64[workers, operations, 4], what timed workers
    did (`inferir.ir.contract.abi.CLAIMS`), or nothing. items: attention work items i32[A, 6] by step input, if they are
    recorded.
    """

    begin: int
    phases: list[tuple[str, int]]
    tokens: int = 0
    decode: bool = False
    prompt_tokens: int = 0
    counts: tuple[int, ...] = ()
    requests: int = 0
    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    ops_begin: int = 0
    ops_end: int = 0
    stamps: bytes = b""
    claims: bytes = b""
    items: dict[str, bytes] = {}

    @property
    def end(self) -> int:
        return self.phases[-1][1]

    @property
    def kind(self) -> str:
        """ "decode", "prefill", or "mixed" where some sequences decode and others read their prompts."""
        if self.prompt_tokens == 0:
            return "decode"
        return "prefill" if self.prompt_tokens == self.tokens else "mixed"

    def nanoseconds(self, cycles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """When the cycle counter was at `cycles`: the stamps are laid over the time around the program."""
        stamps = np.frombuffer(self.stamps, np.int64)
        scale = (self.ops_end - self.ops_begin) / max(1, int(stamps[-1] - stamps[0]))
        passed: npt.NDArray[np.int64] = np.rint((cycles - stamps[0]) * scale).astype(np.int64)
        return self.ops_begin + passed

    def operation_ends(self) -> list[int]:
        """Nanoseconds at the step program's start and after each operation: the operations tile the time around it."""
        if not self.stamps:
            return []
        found: list[int] = self.nanoseconds(np.frombuffer(self.stamps, np.int64)).tolist()
        return found

    def worker_claims(self) -> npt.NDArray[np.int64]:
        """`claims` as [workers, operations, 4]; workers may be 0."""
        operations = max(1, len(self.stamps) // 8 - 1)
        return np.frombuffer(self.claims, np.int64).reshape(-1, operations, 4)


class Recording(msgspec.Struct, array_like=True):
    """Steps that followed one another. begin, end: when the recording did. cut: why steps are missing at its end, or
    ""; missed: how many. threads, kv_blocks: of the engine.
    """

    begin: int
    end: int
    steps: list[StepRecord]
    threads: int
    kv_blocks: int
    cut: str = ""
    missed: int = 0


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
