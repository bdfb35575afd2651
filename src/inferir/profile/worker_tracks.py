"""The worker threads in a trace: when each of them worked on which operation, and on how many of its tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.manifest import Manifest
from inferir.runtime.recording.chrome_trace import ENGINE, Buckets, Event, kernel_label, slice_event, thread_name
from inferir.runtime.recording.recorded_steps import Recording, StepRecord

Counts = npt.NDArray[np.int64]
"""Tasks of each operation of a step, where there is more than one; else 0."""


def worker_events(manifest: Manifest, recording: Recording) -> list[Event]:
    """A track per worker thread, with a slice for every operation that it had a part in: from the begin of its first
    claim to the end of its last one.
    """
    buckets = Buckets(manifest)
    events: list[Event] = []
    for worker in range(recording.threads - 1):
        events += thread_name(ENGINE + 1 + worker, f"worker {1 + worker}")
    for step in recording.steps:
        bucket = buckets.of(step)
        modules = buckets.modules(bucket)
        for worker, notes in enumerate(step.worker_claims()):
            for i in np.flatnonzero(notes[:, 3]).tolist():
                kernel = bucket.kernels[bucket.program[i].kernel]
                begin, end = step.nanoseconds(notes[i, :2]).tolist()
                event = slice_event(recording, kernel_label(kernel.name), "worker", begin, end, ENGINE + 1 + worker)
                args = {"kernel": kernel.name, "bucket": bucket.name, "module": modules[i], "tasks": int(notes[i, 3])}
                events.append(event | {"args": args | {"worked_us": _worked(step, notes[i])}})
    return events


def leader_tasks(step: StepRecord, counts: Counts, operation: int) -> dict[str, Any]:
    """Tasks of an operation, and those of them that the leader ran, where they were shared."""
    total = int(counts[operation])
    if total == 0:
        return {}
    others = int(step.worker_claims()[:, operation, 3].sum())
    return {"tasks": total, "tasks_of_leader": total - others}


def _worked(step: StepRecord, note: npt.NDArray[np.int64]) -> float:
    """Microseconds between the begin and the end of a worker's claims, those between two claims left out."""
    begin, end = step.nanoseconds(np.array([0, note[2]])).tolist()
    return float(round((end - begin) / 1000, 3))
