"""A recording as a Chrome trace: JSON that ui.perfetto.dev and chrome://tracing open.

The format is the "Trace Event Format": complete events ("X") with begin and duration in microseconds, counters ("C"),
instants ("i") and names ("M"). One process, the engine; its own thread runs the host's phases and, as the leader of the
worker threads, every operation of the step program. So a step holds its phases, and "wait" the operations, and each
level tiles the one above it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.manifest import BucketRecord, Manifest
from inferir.ir.system.quantities import count
from inferir.runtime.executor.dispatcher import Dispatcher
from inferir.runtime.recording.recorded_steps import Recording, StepRecord

Event = dict[str, Any]

PROCESS, ENGINE = 1, 1
"""Numbers of the process, and of the thread that runs the engine."""

OperationArgs = Callable[[int, BucketRecord, int], Mapping[str, Any]]
"""`args(step, bucket, i)`: what else is known of operation number i of step number `step`, by name."""


def trace_events(
    manifest: Manifest, recording: Recording, args: OperationArgs | None = None, more: Sequence[Event] = ()
) -> list[Event]:
    """The events of a recording, and `more` of the same process. Time 0 is the recording's begin."""
    buckets = Buckets(manifest)
    events: list[Event] = [
        _named("process_name", ENGINE, f"inferir: {manifest.model.name}"),
        _named("thread_name", ENGINE, "engine and leader"),
        {"ph": "M", "pid": PROCESS, "tid": ENGINE, "name": "thread_sort_index", "args": {"sort_index": 0}},
    ]
    for number, step in enumerate(recording.steps):
        bucket = buckets.of(step)
        events.append(_step_event(recording, number, step, bucket))
        begin = step.begin
        for phase, end in step.phases:
            events.append(slice_event(recording, phase, "phase", begin, end))
            begin = end
        events += _operations(recording, number, bucket, buckets.modules(bucket), args)
        at = micro(step.end - recording.begin)
        for name, value in (
            ("KV blocks in use", step.kv_used),
            ("running requests", step.running),
            ("waiting requests", step.waiting),
        ):
            events.append({"ph": "C", "pid": PROCESS, "name": name, "ts": at, "args": {"value": value}})
    if recording.cut:
        text, at = (
            f"{recording.cut}; {count(recording.missed, 'step')} followed",
            micro(recording.end - recording.begin),
        )
        events.append({"ph": "i", "s": "p", "pid": PROCESS, "tid": ENGINE, "name": text, "cat": "note", "ts": at})
    return [*events, *more]


def trace_document(manifest: Manifest, recording: Recording, events: list[Event], **facts: Any) -> bytes:
    """The trace as JSON; `facts` are told in "otherData" beside what the recording is of."""
    known = {
        "producer": "inferir",
        "model": manifest.model.name,
        "target": manifest.target.name,
        "artifact": manifest.digest,
        "threads": recording.threads,
        "kv_blocks": recording.kv_blocks,
        "steps": len(recording.steps),
        "cut": recording.cut,
        "missed_steps": recording.missed,
    }
    document = {"displayTimeUnit": "ms", "otherData": {**known, **facts}, "traceEvents": events}
    return msgspec.json.encode(document)


class Buckets:
    """Which bucket a recorded step ran with, and which modules its operations compute."""

    def __init__(self, manifest: Manifest) -> None:
        self._dispatcher = Dispatcher([(b, b) for b in manifest.buckets])
        self._modules: dict[str, list[str]] = {}

    def of(self, step: StepRecord) -> BucketRecord:
        return self._dispatcher.select(BatchDescriptor(step.tokens, step.decode))

    def modules(self, bucket: BucketRecord) -> list[str]:
        """The module path of every operation: its own, where each call of its kernel is of one module, else those of
        all the kernel's calls, the first and the last."""
        if bucket.name not in self._modules:
            calls = Counter(call.kernel for call in bucket.program)
            seen: Counter[int] = Counter()
            found = []
            for call in bucket.program:
                paths = bucket.kernels[call.kernel].provenance
                if len(paths) == calls[call.kernel]:
                    found.append(paths[seen[call.kernel]])
                else:
                    found.append(" … ".join(dict.fromkeys((*paths[:1], *paths[-1:]))))
                seen[call.kernel] += 1
            self._modules[bucket.name] = found
        return self._modules[bucket.name]


def slice_event(recording: Recording, name: str, category: str, begin: int, end: int, tid: int = ENGINE) -> Event:
    """A complete event; times in nanoseconds of the monotonic clock."""
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": tid,
        "name": name,
        "cat": category,
        "ts": micro(begin - recording.begin),
        "dur": micro(end - begin),
    }


def micro(nanoseconds: int) -> float:
    """Microseconds with the three decimals that the format's readers keep."""
    return round(nanoseconds / 1000, 3)


def kernel_label(name: str) -> str:
    """A kernel's name without its number in the library."""
    return name.partition("_")[2] or name


def _step_event(recording: Recording, number: int, step: StepRecord, bucket: BucketRecord) -> Event:
    sizes = f"{count(step.tokens, 'token')} of {count(step.requests, 'request')}"
    facts = {"step": number, "kind": step.kind, "bucket": bucket.name, "tokens": step.tokens}
    facts |= {"prompt_tokens": step.prompt_tokens, "requests": step.requests}
    return slice_event(recording, f"{step.kind}: {sizes}", "step", step.begin, step.end) | {"args": facts}


def _operations(
    recording: Recording, step: int, bucket: BucketRecord, modules: list[str], args: OperationArgs | None
) -> list[Event]:
    ends = recording.steps[step].operation_ends()
    events = []
    for i, (begin, end) in enumerate(itertools.pairwise(ends)):
        kernel = bucket.kernels[bucket.program[i].kernel]
        event = slice_event(recording, kernel_label(kernel.name), "kernel", begin, end)
        facts: dict[str, Any] = {"kernel": kernel.name, "bucket": bucket.name, "module": modules[i]}
        if args is not None:
            facts |= args(step, bucket, i)
        events.append(event | {"args": facts})
    return events


def _named(what: str, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": tid, "name": what, "args": {"name": name}}


def thread_name(tid: int, name: str) -> list[Event]:
    """The events that name a thread and put it in the order of the numbers."""
    order = {"ph": "M", "pid": PROCESS, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
    return [_named("thread_name", tid, name), order]
