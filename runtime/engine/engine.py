"""The engine: schedule, prepare inputs, run the step program, deliver."""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from inferir.ir.errors import RequestError
from inferir.runtime.batch.input_batch import InputBatch, PreparedStep
from inferir.runtime.batch.prompt_scores import PromptScores
from inferir.runtime.engine.scheduler import Scheduler, SchedulerOptions
from inferir.runtime.engine.stats import EngineStats
from inferir.runtime.executor.base import Executor, StepOutputs
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.kv.prefix_cache import PrefixKey
from inferir.runtime.requests.request import Grammar, Request
from inferir.runtime.requests.update import Update
from inferir.runtime.sampling.logit_rules import compile_rules
from inferir.runtime.sampling.sampling_params import SamplingParams, seed_i32
from inferir.runtime.sampling.token_logprobs import TokenLogprobs, token_logprobs
from inferir.runtime.text.detokenizer import make_detokenizer
from inferir.runtime.text.tokenizer import Tokenizer

MAX_SALT_CHARS = 1024
GRAMMAR_WAIT = 0.01
"""Seconds that a step waits for a grammar when there is nothing else to do."""


@dataclass(frozen=True)
class ModelLimits:
    """What the engine knows of the model: ids 0 … vocab_size - 1, the ids that end a text, and the longest sequence."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int


class Engine:
    """Serves requests over one executor. Not thread-safe: one thread calls it."""

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
        self.batch = InputBatch(
            executor,
            kv.tables,
            max_seqs=options.max_seqs,
            max_model_len=limits.max_model_len,
            block_size=block_size,
        )
        self.batch_tokens = 0
        self._scores = PromptScores()
        self._ids = itertools.count()
        self._steps = self._sampled = 0
        self._finished: Counter[str] = Counter()

    def step(self) -> list[Update]:
        """Advance the scheduled requests by one step; one update for each request that got a token or failed."""
        plan = self.scheduler.schedule()
        for request in plan.preempted:
            self.batch.release(request)
        updates = []
        for request, failure in plan.failed:
            request.internal = not isinstance(failure, RequestError)
            updates.append(self._fail(request, f"its grammar cannot be used: {failure}"))
        if not plan.scheduled:
            if not updates:
                self._await_grammar()
            return updates
        started = time.monotonic()
        step = self.batch.prepare(plan.scheduled)
        self._mask(step)
        counts = self._scores.prepare(plan.scheduled, step.counts, self.executor.inputs)
        outputs = self.executor.run(step.descriptor, counts)
        self.scheduler.complete(plan)
        self._scores.take(outputs.logits)
        for request, _ in plan.scheduled:
            if not request.outputs and request.timing.scheduled is None:
                request.timing.scheduled = started
        self._steps += 1
        self.batch_tokens += step.counts.tokens
        return updates + self._deliver_all(step, outputs)

    def add_request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        grammar: Future[Grammar] | None = None,
    ) -> Request:
        """Queue a prompt of token ids.

        priority: lower numbers go first under the priority policy. cache_salt: share cached beginnings only with
        requests of the same salt. grammar: the request waits for it and then keeps to it. Raises `RequestError`
        naming the field if it can never be served, `QueueFullError` if too many requests are waiting.
        """
        if params.n != 1:
            raise RequestError("this call makes one answer; several are made by add_requests", "n")
        (request,) = self.add_requests(
            prompt, params, request_id, priority=priority, cache_salt=cache_salt, grammar=grammar
        )
        return request

    def add_requests(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        grammar: Future[Grammar] | None = None,
    ) -> list[Request]:
        """Queue `params.n` independent requests for one prompt, or none of them.

        Their ids are `request_id` itself if n is 1, else with "-0", "-1", … after it; their seeds are derived from
        that of `params`. With the prefix cache, the first computes the prompt and the others wait for it.
        """
        group = self.make_requests(
            prompt, params, request_id, priority=priority, cache_salt=cache_salt, grammar=grammar
        )
        self.queue([group])
        return group

    def queue(self, groups: Sequence[Sequence[Request]]) -> None:
        """Queue requests made by `make_requests`, or none of them."""
        requests = [r for group in groups for r in group]
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

    def make_request(self, prompt: Sequence[int], params: SamplingParams, request_id: str | None = None) -> Request:
        """A checked request that is not queued."""
        return self.make_requests(prompt, params, request_id)[0]

    def make_requests(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        grammar: Future[Grammar] | None = None,
    ) -> list[Request]:
        """Checked requests, one per wanted answer, that are not queued."""
        ids = self._check_prompt(prompt)
        _check_options(priority, cache_salt)
        if params.stop_strings and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this engine has none; use stop_token_ids", "stop")
        name = request_id if request_id is not None else f"request-{next(self._ids)}"
        if params.structured is not None and grammar is None:
            raise RequestError("structured needs a compiled grammar", "structured")
        wanted = self.capacity if params.max_tokens is None else len(ids) + params.max_tokens
        rules = compile_rules(params, self.limits.vocab_size, self.limits.eos_token_ids, self.tokenizer)
        enders = params.stop_ids if params.ignore_eos else params.stop_ids | self.limits.eos_token_ids
        length = len(ids) if "lengths" in self.executor.inputs else None
        group: list[Request] = []
        for index in range(params.n):
            request = Request(
                id=name if params.n == 1 else f"{name}-{index}",
                prompt=ids,
                params=params,
                max_total=min(wanted, self.capacity),
                seed=_seed(params.seed, index),
                blocks=self.kv.new_sequence(),
                priority=priority,
                cache_salt=cache_salt,
                enders=enders,
                rules=rules,
                hashes=self.kv.hashes(PrefixKey(salt=cache_salt, prompt_length=length)),
                grammar=grammar,
                leader=group[0] if group and self.kv.prefix is not None else None,
            )
            if self.tokenizer is not None:
                request.detokenizer = make_detokenizer(
                    self.tokenizer,
                    prompt=ids,
                    stop=params.stop_strings,
                    include_stop=params.include_stop_str_in_output,
                    skip_special=params.skip_special_tokens,
                    kept=params.kept_ids,
                )
            if params.prompt_logprobs is not None:
                request.prompt_logprobs = [None]
            group.append(request)
        return group

    def abort(self, request_id: str) -> Update | None:
        """Stop a request now; its blocks are free when this returns. None if it is not being served."""
        request = self.scheduler.find(request_id)
        return None if request is None else self._finish(request, None, "", "abort", None)

    def close(self) -> None:
        """Stop the executor. Unfinished requests are dropped."""
        for request in self.scheduler.requests():
            self._finish(request, None, "", "abort", None)
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
            kv_usage=pool.usage,
            prefix_queries=0 if prefix is None else prefix.queries,
            prefix_hits=0 if prefix is None else prefix.hits,
            preemptions=self.scheduler.num_preemptions,
            steps=self._steps,
            computed_tokens=self.batch_tokens,
            generated_tokens=self._sampled,
            finished=dict(self._finished),
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
                    self.batch.constrain(row, request.matcher.fill)
                except Exception as error:  # it ends this request, once the step has run for the others
                    _blame_grammar(request, error)

    def _deliver_all(self, step: PreparedStep, outputs: StepOutputs) -> list[Update]:
        now = time.monotonic()
        self._sampled += len(step.sampled)
        updates = []
        tokens = outputs.tokens[: step.counts.rows].tolist() + outputs.greedy.tolist()
        for row, (request, token) in enumerate(zip(step.sampled, tokens, strict=True)):
            logprobs = None
            if request.params.logprobs is not None and 0 <= token < self.limits.vocab_size:
                logprobs = token_logprobs(outputs.logits[row], token, request.params.logprobs)
            if not request.outputs:
                request.timing.first_token = request.timing.first_token or now
            request.timing.last_token = now
            if token < 0 and row < len(outputs.logits) and np.isnan(outputs.logits[row]).any():
                request.error, request.internal = "the logits are not numbers", True
            if token < 0 and self._complete(request):
                updates.append(self._finish(request, None, "", "stop", None))
            else:
                updates.append(self._deliver(request, token, logprobs))
        return updates

    @staticmethod
    def _complete(request: Request) -> bool:
        """Whether no token can follow because the text of a grammar is complete, and only its end is left."""
        if request.matcher is None or request.error is not None:
            return False
        try:
            return request.matcher.end()
        except Exception as error:  # as in `_problem`
            _blame_grammar(request, error)
            return False

    def _deliver(self, request: Request, token: int, logprobs: TokenLogprobs | None) -> Update:
        """Append `token` and decide whether the request ends with it. The text of a token that ends it is left out."""
        problem = self._problem(request, token)
        if problem is not None:
            return self._fail(request, problem)
        self.batch.append(request, token)
        params, detokenizer, text = request.params, request.detokenizer, ""
        may_stop = len(request.outputs) > params.min_tokens
        ends = may_stop and token in request.enders
        if detokenizer is not None and (not ends or params.include_stop_str_in_output):
            text = detokenizer.push(token, may_stop=may_stop)
        reason: str | None = None
        stop: int | str | None = None
        if ends:
            of_model = token in self.limits.eos_token_ids and not params.ignore_eos
            reason, stop = "stop", None if of_model else token
        elif detokenizer is not None and detokenizer.stopped_by is not None:
            reason, stop = "stop", detokenizer.stopped_by
        elif request.matcher is not None and request.matcher.finished:
            reason = "stop"
        elif request.num_tokens >= request.max_total:
            reason = "length"
        if reason is None:
            return Update(request, token, text, logprobs=logprobs)
        return self._finish(request, token, text, reason, stop, logprobs)

    def _problem(self, request: Request, token: int) -> str | None:
        """Why the request cannot go on by `token`, if it cannot."""
        if request.error is not None:
            return request.error
        if not 0 <= token < self.limits.vocab_size:
            return "no token can follow: every one is excluded, or the logits are not numbers"
        try:
            if request.matcher is None or request.matcher.accept(token):
                return None
        except Exception as error:  # whatever a grammar does wrong, it ends this request only
            _blame_grammar(request, error)
            return request.error
        request.internal = True  # the device drew what the mask excludes
        return f"token {token} does not fit its grammar"

    def _fail(self, request: Request, error: str) -> Update:
        request.error = f"request {request.id!r} cannot go on: {error}"
        return self._finish(request, None, "", "error", None)

    def _finish(
        self,
        request: Request,
        token: int | None,
        text: str,
        reason: str,
        stop_reason: int | str | None,
        logprobs: TokenLogprobs | None = None,
    ) -> Update:
        self.batch.release(request)
        self.scheduler.finish(request)
        self._finished[reason] += 1
        request.timing.finished = time.monotonic()
        request.finish_reason, request.stop_reason = reason, stop_reason
        if request.detokenizer is not None:
            text += request.detokenizer.finish()
        return Update(request, token, text, reason, stop_reason, logprobs)

    def _check_prompt(self, prompt: Sequence[int]) -> list[int]:
        try:
            ids = np.asarray(prompt)
        except (ValueError, OverflowError):
            raise RequestError("the prompt must be a flat list of token ids", "prompt") from None
        if ids.size == 0:
            raise RequestError(
                "the prompt is empty; give at least one token, such as the beginning-of-text token", "prompt"
            )
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError("the prompt must be a flat list of token ids", "prompt")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.limits.vocab_size:
            raise RequestError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {self.limits.vocab_size}", "prompt"
            )
        if len(ids) >= self.capacity:
            limit = f"the context length is {self.limits.max_model_len}"
            if self.capacity < self.limits.max_model_len:
                limit = f"the KV cache holds {self.capacity} per request; give it more memory (kv_cache_memory)"
            raise RequestError(
                f"the prompt has {len(ids)} tokens, which leaves no room for an answer: {limit}", "prompt"
            )
        out: list[int] = ids.tolist()
        return out


def _check_options(priority: int, cache_salt: str | None) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**63) <= priority < 2**63:
        raise RequestError(f"priority must be an integer, not {priority!r}", "priority")
    if cache_salt is not None and (not isinstance(cache_salt, str) or not 1 <= len(cache_salt) <= MAX_SALT_CHARS):
        raise RequestError(f"cache_salt must be a string of 1 to {MAX_SALT_CHARS} characters", "cache_salt")


def _seed(seed: int | None, index: int) -> int:
    """The seed of answer `index`: that of the request for the first, numbers derived from it for the others."""
    if seed is not None and index:
        digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little", signed=True)
    return seed_i32(seed)


def _blame_grammar(request: Request, error: Exception) -> None:
    """Note that following the grammar of `request` failed; a `RequestError` is the fault of the grammar itself."""
    request.error, request.internal = f"its grammar failed: {error}", not isinstance(error, RequestError)
