"""Profile an artifact: run steps of given shapes, record them, and hold the kernels against the machine's limits."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from inferir.ir.contract.manifest import BucketRecord, Manifest
from inferir.profile.kernel_table import KindTable, step_medians, tables
from inferir.profile.machine_limits import LimitProbe, MachineLimits
from inferir.profile.operation_work import OperationWork
from inferir.profile.step_runs import Run, Shapes, run_shapes
from inferir.profile.worker_tracks import Counts, leader_tasks, worker_events
from inferir.runtime.build_engine import build_engine
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_options import EngineOptions
from inferir.runtime.executor.base import Executor
from inferir.runtime.executor.cpu.cpu_executor import CpuExecutor
from inferir.runtime.executor.executors import check_target
from inferir.runtime.loader import load_artifact
from inferir.runtime.recording.chrome_trace import PROCESS, Buckets, Event, micro, trace_document, trace_events
from inferir.runtime.recording.recorded_steps import Recording

_ROUNDS = 10
"""Measurements of each limit, before and after the runs; the best counts."""


@dataclass(frozen=True)
class ProfileReport:
    """A profile. `run` is the recorded run in the middle; `tables` have a row per kernel, by kind of step. `tasks`
    are those of each step's operations.
    """

    artifact: Path
    manifest: Manifest
    shapes: Shapes
    threads: int
    limits: MachineLimits
    run: Run
    tables: list[KindTable]
    work: OperationWork
    tasks: list[Counts]

    @property
    def recording(self) -> Recording:
        assert self.run.recording is not None
        return self.run.recording

    def trace(self) -> bytes:
        """The recorded run as a Chrome trace in JSON."""
        more = [*_bandwidth(self), *worker_events(self.manifest, self.recording)]
        events = trace_events(self.manifest, self.recording, self._args, more)
        for event, wall in zip((e for e in events if e.get("cat") == "step"), self.run.walls, strict=False):
            event["args"]["wall_us"] = round(wall * 1e6, 3)
        limits = {"memory": self.limits.memory, "cache": self.limits.cache, "flops": self.limits.flops}
        ratios = {table.kind: round(table.ratio, 4) for table in self.tables}
        return trace_document(self.manifest, self.recording, events, limits_per_second=limits, slower_by_kind=ratios)

    def _args(self, number: int, bucket: BucketRecord, operation: int) -> Mapping[str, Any]:
        step = self.recording.steps[number]
        work = self.work.of(step, bucket, operation)
        tasks = leader_tasks(step, self.tasks[number], operation) if self.tasks else {}
        named = {
            "weight_bytes": work.weights,
            "kv_bytes_read": work.kv_read,
            "kv_bytes_written": work.kv_written,
            "activation_bytes": work.activations,
            "flops": work.flops,
        }
        return tasks | {name: value for name, value in named.items() if value}


def profile_artifact(
    artifact: str | os.PathLike[str],
    shapes: Shapes,
    options: EngineOptions,
    *,
    repeats: int = 3,
    streamed: int | None = None,
) -> ProfileReport:
    """Profile `artifact` on this machine: `repeats` runs without a recorder and as many with one, in turn, for whatever
    slows the machine for a while slows both; every other turn begins with the other kind. `streamed`: bytes that the
    limits are measured with.

    Raises an `InferirError` if it cannot be loaded here, or the shapes do not fit.
    """
    loaded = load_artifact(artifact, check_target)
    manifest = loaded.manifest
    work = OperationWork(Path(artifact))
    engine = build_engine(loaded, options)
    try:
        shapes.check(engine)
        threads = engine.executor.threads
        with LimitProbe(threads, manifest.model.dtype, manifest.target, streamed) as probe:
            limits = [probe.measure(_ROUNDS)]
            run_shapes(engine, shapes, manifest, record=False)  # brings code, weights and cache into memory
            runs: dict[bool, list[Run]] = {False: [], True: []}
            for turn in range(repeats):
                for record in (False, True) if turn % 2 == 0 else (True, False):
                    with _workers(engine.executor, probe, timed=record):
                        runs[record].append(run_shapes(engine, shapes, manifest, record=record))
            limits.append(probe.measure(_ROUNDS))
            tasks = _task_counts(engine, shapes, manifest)
    finally:
        engine.close()
    run = _middle(runs[True])
    return ProfileReport(
        artifact=Path(artifact),
        manifest=manifest,
        shapes=shapes,
        threads=threads,
        limits=MachineLimits(*map(max, zip(*map(astuple, limits), strict=True))),
        run=run,
        tables=tables(manifest, run, step_medians(runs[False]), step_medians(runs[True]), work),
        work=work,
        tasks=tasks,
    )


@contextmanager
def _workers(executor: Executor, probe: LimitProbe, *, timed: bool) -> Iterator[None]:
    """Have fresh workers in the block, timed ones or those of the artifact, where the executor can have either."""
    if not isinstance(executor, CpuExecutor):
        yield
        return
    executor.time_workers(probe.library if timed else None)
    try:
        yield
    finally:
        executor.time_workers(None)


def _task_counts(engine: Engine, shapes: Shapes, manifest: Manifest) -> list[Counts]:
    """The tasks of each operation of each step, from a run whose operations are started one by one."""
    found: list[Counts] = []
    executor = engine.executor
    if isinstance(executor, CpuExecutor):
        executor.count_tasks(found)
        try:
            run_shapes(engine, shapes, manifest, record=False)
        finally:
            executor.count_tasks(None)
    return found


def _middle(runs: list[Run]) -> Run:
    """The run with the median of the times."""
    middle = statistics.median_low(sum(run.walls) for run in runs)
    return next(run for run in runs if sum(run.walls) == middle)


def _bandwidth(report: ProfileReport) -> list[Event]:
    """A counter of the bytes of weights and cached keys and values that each operation needs, per second."""
    events: list[Event] = []
    buckets = Buckets(report.manifest)

    def note(at: int, value: float) -> None:
        args = {"value": round(value, 2)}
        events.append({"ph": "C", "pid": PROCESS, "name": _COUNTER, "ts": micro(at), "args": args})

    for step in report.recording.steps:
        bucket, ends = buckets.of(step), step.operation_ends()
        for i, (begin, end) in enumerate(itertools.pairwise(ends)):
            needed = report.work.of(step, bucket, i).memory
            note(begin - report.recording.begin, needed / max(1, end - begin))
        if ends:
            note(ends[-1] - report.recording.begin, 0.0)
    return events


_COUNTER = "memory GB/s, estimated"
