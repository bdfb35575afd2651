"""The engine: schedule, prepare inputs, run the step program, deliver."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferir.ir.errors import RequestError
from inferir.runtime.batch.input_batch import InputBatch, PreparedStep
from inferir.runtime.batch.sampling_rows import PromptScores
from inferir.runtime.engine.delivery import Delivery, blame_grammar
from inferir.runtime.engine.engine_options import ModelLimits
from inferir.runtime.engine.request_maker import RequestMaker
from inferir.runtime.engine.scheduler import Scheduler, SchedulerOptions
from inferir.runtime.executor.base import Executor, Step
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.recording.step_observer import NOBODY, StepObserver
from inferir.runtime.requests.request import Request, Scheduled, Update
from inferir.runtime.text.tokenizer import Tokenizer

GRAMMAR_WAIT = 0.01
"""Seconds that a step waits for a grammar when there is nothing else to do."""


@dataclass(frozen=True)
class EngineStats:
    """What an engine holds at one moment and has done: gauges, then counters since the engine was made.

    waiting: requests that are not running. kv_usage: share of the blocks in use, 0 … 1. prefix_queries, prefix_hits:
    prompt tokens looked up and found in the prefix cache. computed_tokens, generated_tokens: tokens that went through
    the model, and tokens sampled. finished: requests by finish reason.
    """

    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_used: int
    kv_bytes_used: int
    kv_usage: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    steps: int
    computed_tokens: int
    generated_tokens: int
    finished: Mapping[str, int]


class Engine:
    """Serves requests over one executor. Not thread-safe: one thread calls it. `observer` is told how steps go; it may
    be changed between them.
    """

    def __init__(
        self,
        executor: Executor,
        kv: KVCache,
        options: SchedulerOptions,
        limits: ModelLimits,
        tokenizer: Tokenizer | None = None,
        *,
        block_size: int,
    ) -> None:
        self.executor = executor
        self.kv = kv
        self.limits = limits
        self.tokenizer = tokenizer
        self.scheduler = Scheduler(options, kv)
        self.capacity = kv.capacity(limits.max_model_len, options.max_tokens)
        self.kv_text = kv.text(self.capacity, options.max_tokens)
        self.requests = RequestMaker(executor, kv, limits, tokenizer, self.capacity)
        self.batch = InputBatch(
            executor,
            kv.groups,
            max_seqs=options.max_seqs,
            max_model_len=limits.max_model_len,
            block_size=block_size,
        )
        self._delivery = Delivery(self.batch, self.scheduler, limits)
        self.observer: StepObserver = NOBODY
        self._scores = PromptScores()
        self._steps = self._computed = 0

    def step(self) -> list[Update]:
        """Advance the scheduled requests by one step; one update for each request that got tokens or failed."""
        observer = self.observer
        observer.begin()
        plan = self.scheduler.schedule()
        for request in plan.preempted:
            self.batch.release(request)
        updates = []
        for request, failure in plan.failed:
            request.internal = not isinstance(failure, RequestError)
            updates.append(self._delivery.fail(request, f"its grammar cannot be used: {failure}"))
        if not plan.scheduled:
            if not updates:
                self._await_grammar()
            return updates
        observer.planned(plan.scheduled)
        started = time.monotonic()
        prepared = self.batch.prepare(plan.scheduled)
        observer.ends("prepare")
        self._mask(prepared)
        counts = self._scores.prepare(plan.scheduled, prepared.counts, self.executor.inputs)
        observer.ends("constrain")
        step = Step(prepared.descriptor, counts)
        running = self.executor.submit(step)
        self._note(plan.scheduled, prepared.counts.tokens, started)  # beside the device: it needs no outputs
        observer.ends("submit")
        outputs = self.executor.wait(running)
        observer.ends("wait")
        self.scheduler.complete(plan, [s.tokens for s in plan.scheduled])
        self._scores.take(outputs)
        observer.ends("complete")
        updates += self._delivery.deliver(prepared, outputs)
        observer.end(step)
        return updates

    def queue(self, requests: Sequence[Request]) -> None:
        """Queue requests, or none of them. Raises `QueueFullError` if too many are waiting."""
        self.scheduler.check_room(len(requests))
        added: list[Request] = []
        try:
            for request in requests:
                self.scheduler.add(request)
                added.append(request)
        except BaseException:
            for request in added:
                self.scheduler.finish(request)
            raise

    def abort(self, request_id: str) -> Update | None:
        """Stop a request now; its blocks are free when this returns. None if it is not being served."""
        request = self.scheduler.find(request_id)
        return None if request is None else self._delivery.finish(Update(request, (), "", "abort"))

    def close(self) -> None:
        """Stop the executor. Unfinished requests are dropped."""
        for request in self.scheduler.requests():
            self._delivery.finish(Update(request, (), "", "abort"))
        self.executor.close()

    def reset_prefix_cache(self) -> None:
        """Forget all cached beginnings. Running requests go on."""
        if self.kv.prefix is not None:
            self.kv.prefix.reset()

    def stats(self) -> EngineStats:
        """A snapshot for metrics."""
        pool, prefix = self.kv.pool, self.kv.prefix
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=self.scheduler.num_waiting,
            kv_blocks=pool.num_blocks - 1,
            kv_blocks_used=pool.num_used,
            kv_bytes_used=pool.num_used * self.kv.block_bytes,
            kv_usage=pool.usage,
            prefix_queries=0 if prefix is None else prefix.queries,
            prefix_hits=0 if prefix is None else prefix.hits,
            preemptions=self.scheduler.num_preemptions,
            steps=self._steps,
            computed_tokens=self._computed,
            generated_tokens=self._delivery.generated,
            finished=dict(self._delivery.finished),
        )

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def _await_grammar(self) -> None:
        """Give a grammar that everything waits for a moment, instead of turning in circles."""
        grammars = [r.grammar for r in self.scheduler.pending.values() if r.grammar is not None]
        if grammars:
            concurrent.futures.wait(grammars, GRAMMAR_WAIT, concurrent.futures.FIRST_COMPLETED)

    def _mask(self, step: PreparedStep) -> None:
        """Let grammars say which tokens may come next."""
        for row, request in enumerate(step.sampled):
            if request.matcher is not None:
                try:
                    self.batch.sampling.constrain(row, request.matcher.fill)
                except Exception as error:  # it ends this request, once the step has run for the others
                    blame_grammar(request, error)

    def _note(self, scheduled: Sequence[Scheduled], tokens: int, started: float) -> None:
        """Count a step of `tokens` tokens that began at `started`."""
        for request, _ in scheduled:
            if not request.outputs and request.timing.scheduled is None:
                request.timing.scheduled = started
        self._steps += 1
        self._computed += tokens
