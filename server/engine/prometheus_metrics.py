"""Prometheus metrics, with the base names that dashboards for vLLM know.

Names are as Prometheus wants them, `inferir_num_requests_running`: a colon is for recording rules. With the prefix
`vllm` they are vLLM's own, colon included.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from inferir.server.engine.engine_client import Job
from inferir.server.engine.messages import Stats, TokenEvent

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 40)
_REQUEST = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

VLLM = "vllm"
"""The prefix with which every name that vLLM has, too, is spelled as there."""
_VLLM_NAMES = {"iteration_tokens": "iteration_tokens_total"}
"""Base names that vLLM spells in another way, against the rule that `_total` is for counters."""

FINISH_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """All metrics of a server, their names with a prefix (see `full_name`)."""

    def __init__(self, prefix: str, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self._model = model
        self._seen = Stats()
        self.generated = 0  # tokens since the server started
        self._gauges = {
            "running": self._gauge("num_requests_running", "Requests that the engine is computing."),
            "waiting": self._gauge("num_requests_waiting", "Requests that wait for a place in the engine."),
            "kv_usage": self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1."),
            "kv_bytes_used": self._gauge("kv_cache_used_bytes", "Bytes of the KV cache in use."),
        }
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that began to answer.")
        self.generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._of_engine = {
            "prefix_queries": self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
            "prefix_hits": self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
            "preemptions": self._counter("num_preemptions", "Times that a running request lost its place."),
            "compilers": self._counter("compile_events", "Compilers loaded while serving; stays 0."),
        }
        self._finished = Counter(
            full_name(prefix, "request_success"),
            "Requests that ended, by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        for reason in FINISH_REASONS:
            self._finished.labels(model, reason)
        self._refused = self._counter("num_requests_refused", "Requests refused because too many waited.")
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _FIRST
        )
        self.itl = self._histogram("inter_token_latency_seconds", "Between two tokens of a request.", _BETWEEN)
        self.e2e = self._histogram("e2e_request_latency_seconds", "From a request's arrival to its end.", _REQUEST)
        self.queue = self._histogram("request_queue_time_seconds", "Until a request was first scheduled.", _REQUEST)
        self.prefill = self._histogram("request_prefill_time_seconds", "From there to the first token.", _REQUEST)
        self.decode = self._histogram("request_decode_time_seconds", "From the first token to the last.", _REQUEST)
        self.iteration = self._histogram("iteration_tokens", "Tokens that a step computed.", _STEP)
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.request_generation = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)

    def observe(self, job: Job, event: TokenEvent) -> None:
        """Count what the engine sent for a request."""
        now = time.monotonic()
        count = len(event.tokens)
        if count:
            self.generation_tokens.inc(count)
            self.generated += count
            if job.tokens == 0:
                self.prompt_tokens.inc(job.prompt_tokens)
                self.ttft.observe(now - job.arrival)
                job.first, job.queued = now, event.queued or 0.0
                self.queue.observe(job.queued)
                self.prefill.observe(max(0.0, now - job.arrival - job.queued))
            else:
                for _ in event.tokens:  # those of one step share the time since the last
                    self.itl.observe((now - job.last) / count)
            job.tokens += count
            job.last = now
        if event.finish_reason is not None:
            self._finished.labels(self._model, event.finish_reason).inc()
            self.e2e.observe(now - job.arrival)
            self.decode.observe(max(0.0, job.last - job.first))
            self.request_prompt.observe(job.prompt_tokens)
            self.request_generation.observe(job.tokens)

    def aborted(self) -> None:
        """Count a request whose client left."""
        self._finished.labels(self._model, "abort").inc()

    def refused(self, count: int) -> None:
        """Count requests for which the queue had no room."""
        self._refused.inc(count)

    def observe_stats(self, stats: Stats) -> None:
        """Take over the engine's state; its counts start again at 0 with every engine process."""
        for name, gauge in self._gauges.items():
            gauge.set(getattr(stats, name))
        for name, counter in self._of_engine.items():
            before, now = getattr(self._seen, name), getattr(stats, name)
            counter.inc(now - before if now >= before else now)
        if stats.computed_tokens > self._seen.computed_tokens:
            self.iteration.observe(stats.computed_tokens - self._seen.computed_tokens)
        self._seen = stats

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(*self._name(name, help), registry=self.registry).labels(self._model)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(*self._name(name, help), registry=self.registry).labels(self._model)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(*self._name(name, help), registry=self.registry, buckets=buckets).labels(self._model)

    def _name(self, name: str, help: str) -> tuple[str, str, tuple[str]]:
        return full_name(self._prefix, name), help, ("model_name",)


def full_name(prefix: str, name: str) -> str:
    """The base name of a metric behind `prefix` and an underscore, a colon if it is vLLM's; "" leaves both out."""
    if prefix == VLLM:
        return f"{prefix}:{_VLLM_NAMES.get(name, name)}"
    return f"{prefix}_{name}" if prefix else name
