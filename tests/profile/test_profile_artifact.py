"""A profile of a tiny model: its trace opens in Perfetto's trace processor, and its parts add up."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto_engine import Perfetto
from trace_format import checked, inside

from inferir.profile.profile_artifact import ProfileReport, profile_artifact
from inferir.profile.step_runs import Shapes
from inferir.runtime.engine.engine_options import EngineOptions

SHAPES = Shapes(prompt_tokens=20, batch=3, steps=4)
OPTIONS = EngineOptions(threads=2, kv_cache_memory="4MiB", enable_prefix_caching=False)


@pytest.fixture(scope="module")
def report(tiny_artifact: Path) -> ProfileReport:
    return profile_artifact(tiny_artifact, SHAPES, OPTIONS, repeats=1, streamed=1 << 20)


@pytest.fixture(scope="module")
def trace(report: ProfileReport) -> bytes:
    return report.trace()


@pytest.fixture(scope="module")
def perfetto(trace: bytes, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    file.write_bytes(trace)
    with Perfetto(trace=str(file)) as opened:
        yield opened


def test_perfetto_reads_every_event(perfetto: Perfetto, trace: bytes) -> None:
    events = checked(trace)["traceEvents"]
    (slices,) = perfetto.rows("select count(*) as n, sum(dur) as ns from slice")
    written = [e for e in events if e["ph"] == "X"]
    assert slices["n"] == len(written)
    assert slices["ns"] == pytest.approx(1000 * sum(e["dur"] for e in written), abs=len(written))
    (counters,) = perfetto.rows("select count(*) as n from counter")
    assert counters["n"] == sum(e["ph"] == "C" for e in events)
    problems = perfetto.rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    assert problems == []


def test_perfetto_finds_that_a_step_is_the_sum_of_its_parts(perfetto: Perfetto) -> None:
    """Its phases tile it, and it is what the engine's caller measured, within 5 % but for a step or two: what another
    process takes between the two clocks is in no step."""
    steps = perfetto.rows(
        """select step.id, step.dur, extract_arg(step.arg_set_id, 'args.wall_us') as wall,
        (select sum(dur) from slice where parent_id = step.id) as phases,
        (select count(*) from slice where parent_id = step.id) as n
        from slice step where step.category = 'step'"""
    )
    assert len(steps) == 1 + SHAPES.steps
    for step in steps:
        assert step["n"] == 8
        assert step["phases"] == pytest.approx(step["dur"], abs=20)
        assert step["dur"] / 1000 <= step["wall"] + 0.01
    assert statistics.median(step["phases"] / 1000 / step["wall"] for step in steps) > 0.95
    waits = perfetto.rows(
        """select dur, (select sum(dur) from slice where parent_id = wait.id) as kernels,
        (select count(*) from slice where parent_id = wait.id) as n from slice wait where name = 'wait'"""
    )
    for wait in waits:
        assert 0 < wait["kernels"] <= wait["dur"]


def test_perfetto_shows_names_and_counters(perfetto: Perfetto, report: ProfileReport) -> None:
    tracks = {r["name"] for r in perfetto.rows("select name from counter_track")}
    named = {"KV blocks in use", "running requests", "waiting requests", "memory GB/s, estimated"}
    assert named <= {t.removesuffix(" value") for t in tracks}
    first = report.manifest.buckets[0]
    kernels = {r["name"] for r in perfetto.rows("select distinct name from slice where category = 'kernel'")}
    assert kernels == {k.name.split("_", 1)[1] for k in first.kernels}
    (args,) = perfetto.rows(
        """select extract_arg(arg_set_id, 'args.module') as module, extract_arg(arg_set_id, 'args.bucket') as bucket,
        extract_arg(arg_set_id, 'args.weight_bytes') as bytes from slice where name = 'linear_gated_act' limit 1"""
    )
    assert args == {"module": "model.layers.0.mlp", "bucket": "t9-64", "bytes": 4 * 2 * 64 * 160}


def test_tables_count_what_the_steps_have(report: ProfileReport) -> None:
    prefill, decode = report.tables
    assert (prefill.kind, prefill.steps, prefill.tokens) == ("prefill", 1, 60)
    assert (decode.kind, decode.steps, decode.tokens) == ("decode", 4, 12)
    program = len(report.manifest.buckets[0].program)
    for table in report.tables:
        assert sum(row.calls for row in table.kernels) == program * table.steps
        assert 0 < table.parts <= 1 + 1e-6
        assert table.ratio > 0
        seconds = [row.seconds for row in table.kernels]
        assert seconds == sorted(seconds, reverse=True)
    attention = {t.kind: row.work for t in report.tables for row in t.kernels if row.kernel.endswith("_attention")}
    # Two layers, two heads of 16 values for keys and values each, in float32: what each token sees.
    assert attention["prefill"].kv_read == 2 * 4 * 64 * 3 * 20
    assert attention["decode"].kv_read == 2 * 4 * 64 * 3 * (21 + 22 + 23 + 24)
    writes = {t.kind: row.work for t in report.tables for row in t.kernels if row.kernel.endswith("_kv_write")}
    assert writes["prefill"].kv_written == 2 * 4 * 64 * 60


def test_operations_tile_the_step_program(trace: bytes, report: ProfileReport) -> None:
    events = checked(trace)["traceEvents"]
    for event in events:
        if event["ph"] == "X" and event["name"] == "wait":
            kernels = inside(event, events, "kernel")
            assert len(kernels) == len(report.manifest.buckets[0].program)
            gaps = np.diff([k["ts"] for k in kernels]) - [k["dur"] for k in kernels[:-1]]
            assert np.abs(gaps).max() < 0.003


def test_workers_have_tracks_of_their_own(perfetto: Perfetto, trace: bytes, report: ProfileReport) -> None:
    """What they ran lies within the operation, and with the leader's tasks it is all of the operation."""
    threads = {r["name"] for r in perfetto.rows("select name from thread where name is not null")}
    assert threads == {"engine and leader", "worker 1"}
    events = checked(trace)["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    shared = [e for e in kernels if "tasks" in e["args"]]
    assert shared
    ran = [e for e in events if e.get("cat") == "worker"]
    assert all(e["tid"] == 2 for e in ran)
    for event in ran:
        (outer,) = (k for k in shared if k["ts"] <= event["ts"] + 0.01 and _end(event) <= _end(k) + 0.01)
        assert outer["name"] == event["name"]
        assert outer["args"]["tasks"] - outer["args"]["tasks_of_leader"] == event["args"]["tasks"]
        assert 0 < event["args"]["worked_us"] <= event["dur"] + 0.01
    others = sum(k["args"]["tasks"] - k["args"]["tasks_of_leader"] for k in shared)
    assert others == sum(e["args"]["tasks"] for e in ran)
    assert len(report.tasks) == len(report.recording.steps)


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def test_limits_are_measured(report: ProfileReport) -> None:
    limits = report.limits
    assert min(limits.memory, limits.cache, limits.flops) > 1e8
