"""The engine: schedule, prepare inputs, run the step program, deliver."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.batch import InputBatch
from inferir.runtime.detokenizer import make_detokenizer
from inferir.runtime.executor.base import Executor
from inferir.runtime.kv.cache import KVCache
from inferir.runtime.request import Request
from inferir.runtime.sampling import SamplingParams, seed_i32
from inferir.runtime.scheduler import Scheduler, SchedulerOptions
from inferir.runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelLimits:
    """What the engine knows of the model: ids 0 … vocab_size - 1, the ids that end a text, and the longest sequence."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int


@dataclass(frozen=True)
class Update:
    """What one step brought a request: `token`, the text it lets go, and, with the last one, why it ended.

    finish_reason is "stop" (end-of-sequence, stop token or stop string, named by stop_reason unless it is
    end-of-sequence), "length" or "abort"; None means that the request goes on.
    """

    request: Request
    token: int | None
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


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
        self._ids = itertools.count()

    def step(self) -> list[Update]:
        """Advance the scheduled requests by one step; one update for each request that got a token."""
        plan = self.scheduler.schedule()
        for request in plan.preempted:
            self.batch.release(request)
        if not plan.scheduled:
            return []
        step = self.batch.prepare(plan.scheduled)
        outputs = self.executor.run(step.descriptor, step.counts)
        for scheduled in plan.scheduled:
            scheduled.request.computed += scheduled.tokens
        return [self._deliver(r, t) for r, t in zip(step.sampled, outputs.tokens.tolist(), strict=True)]

    def add_request(self, prompt: Sequence[int], params: SamplingParams, request_id: str | None = None) -> Request:
        """Queue a prompt of token ids. Raises `RequestError` naming the field if it can never be served."""
        request = self.make_request(prompt, params, request_id)
        self.scheduler.add(request)
        return request

    def make_request(self, prompt: Sequence[int], params: SamplingParams, request_id: str | None = None) -> Request:
        """A checked request that is not queued."""
        ids = self._check_prompt(prompt)
        wanted = self.capacity if params.max_tokens is None else len(ids) + params.max_tokens
        detokenizer = None
        if self.tokenizer is not None:
            detokenizer = make_detokenizer(
                self.tokenizer,
                prompt=ids,
                stop=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
            )
        elif params.stop_strings:
            raise RequestError("stop strings need a tokenizer, and this engine has none; use stop_token_ids", "stop")
        return Request(
            id=request_id if request_id is not None else f"request-{next(self._ids)}",
            prompt=ids,
            params=params,
            max_total=min(wanted, self.capacity),
            seed=seed_i32(params.seed),
            blocks=self.kv.new_sequence(),
            detokenizer=detokenizer,
        )

    def abort(self, request_id: str) -> Update | None:
        """Stop a request now; its blocks are free when this returns. None if it is not being served."""
        request = self.scheduler.find(request_id)
        return None if request is None else self._finish(request, None, "", "abort", None)

    def close(self) -> None:
        """Stop the executor. Unfinished requests are dropped."""
        for request in [*self.scheduler.running.values(), *self.scheduler.waiting.values()]:
            self._finish(request, None, "", "abort", None)
        self.executor.close()

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def _deliver(self, request: Request, token: int) -> Update:
        """Append `token` and decide whether the request ends with it. The text of a token that ends it is left out."""
        if not 0 <= token < self.limits.vocab_size:
            raise EngineError(
                f"the step program sampled token {token}, outside the vocabulary of {self.limits.vocab_size}"
            )
        self.batch.append(request, token)
        params, text = request.params, ""
        ends_text = not params.ignore_eos and token in self.limits.eos_token_ids
        is_stop = token in params.stop_ids
        if request.detokenizer is not None and (not (ends_text or is_stop) or params.include_stop_str_in_output):
            text = request.detokenizer.push(token)
        if ends_text or is_stop:
            return self._finish(request, token, text, "stop", None if ends_text else token)
        if request.detokenizer is not None and request.detokenizer.stopped_by is not None:
            return self._finish(request, token, text, "stop", request.detokenizer.stopped_by)
        if request.num_tokens >= request.max_total:
            return self._finish(request, token, text, "length", None)
        return Update(request, token, text)

    def _finish(
        self, request: Request, token: int | None, text: str, reason: str, stop_reason: int | str | None
    ) -> Update:
        self.batch.release(request)
        self.scheduler.finish(request)
        request.finish_reason, request.stop_reason = reason, stop_reason
        if request.detokenizer is not None:
            text += request.detokenizer.finish()
        return Update(request, token, text, reason, stop_reason)

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
