"""What a recorder keeps of steps, and when it stops by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.symbols import StepCounts
from inferir.runtime.executor.base import OperationTimes, Step
from inferir.runtime.recording.recorded_steps import Recording, StepRecord
from inferir.runtime.recording.step_observer import NOBODY, PHASES
from inferir.runtime.recording.step_recorder import RecordLimits, StepRecorder


@dataclass
class Executor:
    threads: int = 2
    timed: bool = False
    inputs: dict[str, Any] = field(default_factory=dict)
    operation_times: OperationTimes | None = None

    def time_operations(self, wanted: bool) -> None:
        self.timed = wanted


@dataclass
class Gauges:
    running: int = 3
    waiting: int = 1
    kv_blocks: int = 9
    kv_blocks_used: int = 4


STEP = Step(BatchDescriptor(2, True), StepCounts(2, 2, 0, 2, argmax=2))


def one_step(recorder: StepRecorder, operations: int = 3) -> None:
    recorder.begin()
    recorder.planned([])
    for phase in PHASES[1:-2]:
        recorder.ends(phase)
    executor: Any = recorder._executor
    executor.operation_times = OperationTimes(100, 200, np.arange(operations + 1) ** 2 + 50)
    recorder.end(STEP)


def recorder(**limits: Any) -> StepRecorder:
    executor: Any = Executor()
    return StepRecorder(executor, Gauges, RecordLimits(**limits))


def test_a_step_has_its_phases_counts_and_operations() -> None:
    recording = recorder()
    executor: Any = recording._executor
    assert executor.timed
    one_step(recording)
    done = recording.finish()
    assert not executor.timed
    (step,) = done.steps
    assert tuple(name for name, _ in step.phases) == PHASES
    ends = [step.begin, *(end for _, end in step.phases)]
    assert ends == sorted(ends)
    assert done.begin <= step.begin < step.end <= done.end
    assert (step.tokens, step.decode, step.kind, step.counts) == (2, True, "decode", tuple(STEP.counts))
    assert (step.running, step.waiting, step.kv_used, done.kv_blocks) == (3, 1, 4, 9)
    assert step.operation_ends() == [100, 111, 144, 200]


def test_what_computes_nothing_is_no_step() -> None:
    recording = recorder()
    recording.begin()
    one_step(recording)
    recording.begin()
    assert len(recording.finish().steps) == 1


@pytest.mark.parametrize(
    ("limits", "kept", "reason"),
    [
        ({"steps": 2}, 2, "2 steps"),
        ({"seconds": 0.0}, 1, "0 s"),
        ({"bytes": 1 << 20}, 2, "1 MiB"),
    ],
)
def test_limits(limits: dict[str, Any], kept: int, reason: str) -> None:
    recording = recorder(**limits)
    executor: Any = recording._executor
    for _ in range(5):
        one_step(recording, operations=70_000 if "bytes" in limits else 3)
    assert not executor.timed
    done = recording.finish()
    assert (len(done.steps), done.missed) == (kept, 5 - kept)
    assert done.cut == f"the recording was cut at its limit of {reason}"
    assert done is recording.finish()


@pytest.mark.parametrize(("prompt", "kind"), [(0, "decode"), (5, "prefill"), (3, "mixed")])
def test_kinds(prompt: int, kind: str) -> None:
    assert StepRecord(0, [], tokens=5, prompt_tokens=prompt).kind == kind


def test_a_step_program_that_was_not_timed_has_no_operations() -> None:
    assert StepRecord(0, []).operation_ends() == []
    assert Recording(0, 0, [], 1, 1).cut == ""


def test_nobody_takes_note() -> None:
    NOBODY.begin()
    NOBODY.planned([])
    NOBODY.ends("prepare")
    NOBODY.end(STEP)
    assert vars(NOBODY) == {}
