"""The machine: instruction set, processors and memory within every limit of this process, and temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

from inferir.doctor.finding import Finding, failure
from inferir.ir.contract.target import TARGETS, Target, host_features, missing_features
from inferir.ir.errors import TargetError
from inferir.ir.system.quantities import count, size
from inferir.runtime import machine

LAYER = "machine"
TEMPORARY = "temporary files"
LEAST_MEMORY = 512 << 20
"""Bytes below which not even a tiny model is compiled: torch and TVM alone take about as much."""
LEAST_DISK = 256 << 20


def check_machine() -> Iterator[Finding]:
    """Findings about this machine. Nothing is changed, but for a temporary file that is gone again."""
    yield _instructions()
    yield _processors()
    yield _memory()
    yield _temporary()


def _instructions() -> Finding:
    have, name = host_features(), "instruction set"
    try:
        best = Target.host()
    except TargetError as error:
        return failure(LAYER, name, error, "use a processor with AVX2, or compile for it elsewhere with --target")
    others = [t for t in TARGETS.values() if t.kind == "cpu" and missing_features(t, have)]
    lacks = "".join(f"; {t.name} lacks {', '.join(missing_features(t, have))}" for t in others)
    return Finding(LAYER, name, "ok", f"artifacts for {best.name} and less run here{lacks}")


def _processors() -> Finding:
    usable, quota, threads = len(os.sched_getaffinity(0)), machine.cpu_quota(), machine.thread_count()
    limit = "no quota" if quota is None else f"a quota of {quota:g}"
    text = f"{count(threads, 'compute thread')}: {usable} of {os.cpu_count()} processors usable, {limit}"
    if quota is not None and quota < threads:
        advice = f"a quota of less than {threads} stops all threads together for a part of the time; raise it"
        return Finding(LAYER, "processors", "warning", text, advice)
    return Finding(LAYER, "processors", "ok", text)


def _memory() -> Finding:
    free = machine.available_bytes()
    text = f"{size(free)} available within the limits of system, control groups and process"
    if free >= LEAST_MEMORY:
        return Finding(LAYER, "memory", "ok", text)
    advice = "end other processes, or raise the limit (memory.max of the control group, ulimit -v, ulimit -d)"
    return Finding(LAYER, "memory", "failed", f"{text}, and {size(LEAST_MEMORY)} are the least", advice)


def _temporary() -> Finding:
    advice = "free that place, or let TMPDIR name another folder"
    try:
        root = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"\0")
        free = shutil.disk_usage(root).free
    except OSError as error:
        return failure(LAYER, TEMPORARY, error, advice)
    text = f"{root} has {size(free)} free"
    return (
        Finding(LAYER, TEMPORARY, "ok", text)
        if free >= LEAST_DISK
        else Finding(LAYER, TEMPORARY, "failed", f"{text}, and {size(LEAST_DISK)} are the least", advice)
    )
