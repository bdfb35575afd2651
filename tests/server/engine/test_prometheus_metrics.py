"""Metrics of events and states made by hand."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferir.server.engine.engine_client import Job
from inferir.server.engine.messages import Stats, TokenEvent
from inferir.server.engine.prometheus_metrics import Metrics


def values(metrics: Metrics, prefix: str = "inferir_") -> dict[str, float]:
    """Samples without buckets, by name."""
    rows = re.findall(rf"^{prefix}(\w+)\{{[^}}]*\}} (\S+)$", metrics.text().decode(), re.MULTILINE)
    return {name: float(value) for name, value in rows if not name.endswith("_bucket")}


def test_a_request() -> None:
    metrics, job = Metrics("inferir", "m"), Job("r", 0, asyncio.Queue(), prompt_tokens=5)
    metrics.observe(job, TokenEvent("r", (1,), "a", queued=0.0))
    metrics.observe(job, TokenEvent("r", (2, 3), "b", "stop"))
    found = values(metrics)
    assert (found["prompt_tokens_total"], found["generation_tokens_total"], metrics.generated) == (5, 3, 3)
    assert [found[f"{n}_count"] for n in ("time_to_first_token_seconds", "inter_token_latency_seconds")] == [1, 2]
    assert (found["request_prompt_tokens_sum"], found["request_generation_tokens_sum"]) == (5, 3)


def test_counts_go_on_when_an_engine_starts_again() -> None:
    metrics = Metrics("", "m")
    for hits, computed in ((3, 10), (5, 30), (1, 2)):  # the last is another process
        metrics.observe_stats(Stats(running=2, prefix_hits=hits, computed_tokens=computed))
    found = values(metrics, "")
    assert (found["num_requests_running"], found["prefix_cache_hits_total"], found["iteration_tokens_count"]) == (
        2,
        6,
        2,
    )


def test_promtool_has_nothing_to_say() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    text = Metrics("inferir", "m").text()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("prefix", ["inferir", "my_llm", ""])
def test_names_follow_the_rules(prefix: str) -> None:
    """https://prometheus.io/docs/practices/naming/: no colon, base units as suffix, `_total` for counters alone."""
    for family in text_string_to_metric_families(Metrics(prefix, "m").text().decode()):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name), family.name
        assert family.name.startswith(f"{prefix}_" if prefix else "")
        assert family.documentation.endswith("."), family.name
        names = {sample.name for sample in family.samples}
        assert all(name.endswith("_total") for name in names) == (family.type == "counter"), names
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
        assert not re.search(
            r"milli|micro|_ms\b|minute|hour|kilo|mega|_[kmg]i?b\b|gauge|counter|histogram", family.name
        )
        if re.search(r"time|latency", family.name):
            assert family.name.endswith("_seconds")


def test_with_the_prefix_of_vllm_names_are_its_own() -> None:
    """Those of vLLM's `v1/metrics/loggers.py` that both have."""
    metrics = {f.name: f.type for f in text_string_to_metric_families(Metrics("vllm", "m").text().decode())}
    gauges = "num_requests_running num_requests_waiting kv_cache_usage_perc"
    counters = "prompt_tokens generation_tokens prefix_cache_queries prefix_cache_hits num_preemptions request_success"
    histograms = (
        "time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds "
        "request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds iteration_tokens_total "
        "request_prompt_tokens request_generation_tokens"
    )
    for kind, names in (("gauge", gauges), ("counter", counters), ("histogram", histograms)):
        assert {metrics.get(f"vllm:{name}") for name in names.split()} == {kind}
