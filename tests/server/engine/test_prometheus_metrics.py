"""Metrics of events and states made by hand."""

from __future__ import annotations

import asyncio
import re

from inferir.server.engine.engine_client import Job
from inferir.server.engine.messages import Stats, TokenEvent
from inferir.server.engine.prometheus_metrics import Metrics


def values(metrics: Metrics, prefix: str = "inferir:") -> dict[str, float]:
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
