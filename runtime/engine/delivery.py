"""From what a step drew to what its requests get, and which of them end with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from inferir.ir.errors import RequestError
from inferir.runtime.batch.input_batch import InputBatch, PreparedStep
from inferir.runtime.engine.engine_options import ModelLimits
from inferir.runtime.engine.scheduler import Scheduler
from inferir.runtime.executor.base import StepOutputs
from inferir.runtime.requests.request import Request, Update
from inferir.runtime.sampling.token_logprobs import TokenLogprobs, token_logprobs


class Delivery:
    """Hands tokens to requests, and takes those out of batch and scheduler that end.

    generated: tokens delivered. finished: requests by finish reason.
    """

    def __init__(self, batch: InputBatch, scheduler: Scheduler, limits: ModelLimits) -> None:
        self._batch = batch
        self._scheduler = scheduler
        self._limits = limits
        self.generated = 0
        self.finished: Counter[str] = Counter()

    def deliver(self, step: PreparedStep, outputs: StepOutputs) -> list[Update]:
        """One update for each request that the step sampled for."""
        now = time.monotonic()
        rows = outputs.tokens[: step.counts.rows].tolist() + outputs.argmax.tolist()
        updates = []
        for row, (request, tokens) in enumerate(zip(step.sampled, rows, strict=True)):
            timing = request.timing
            if not request.outputs:
                timing.first_token = timing.first_token or now
            timing.last_token = now
            if tokens[0] < 0 and row < step.counts.rows and np.isnan(outputs.row_logits(row)).any():
                request.error, request.internal = "the logits are not numbers", True
            updates.append(self._take(request, tokens, outputs, row))
        return updates

    def fail(self, request: Request, error: str) -> Update:
        """End a request that cannot go on."""
        return self.finish(Update(request, (), "", self._error(request, error)))

    def finish(self, update: Update) -> Update:
        """End the request for the update's reason; the update with the text that was still held back."""
        request, text = update.request, update.text
        assert update.finish_reason is not None
        self._batch.release(request)
        self._scheduler.finish(request)
        self.finished[update.finish_reason] += 1
        request.timing.finished = time.monotonic()
        request.finish_reason, request.stop_reason = update.finish_reason, update.stop_reason
        if request.detokenizer is not None:
            text += request.detokenizer.finish()
        return update._replace(text=text)

    def _take(self, request: Request, tokens: Sequence[int], outputs: StepOutputs, row: int) -> Update:
        """Append `tokens` until one ends the request. The text of a token that ends it is left out."""
        taken: list[int] = []
        scores: list[TokenLogprobs] = []
        text, wanted = "", request.params.logprobs
        reason: str | None = None
        stop: int | str | None = None
        for token in tokens:
            if token < 0:
                if taken:
                    break  # the row brought no more
                if _complete(request):
                    reason = "stop"
                    break
            problem = self._problem(request, token)
            if problem is not None:
                reason = self._error(request, problem)
                break
            if wanted is not None:
                scores.append(token_logprobs(outputs.row_logits(row)[len(taken)], token, wanted))
            taken.append(token)
            piece, reason, stop = self._advance(request, token, len(request.outputs) + len(taken))
            text += piece
            if reason is not None:
                break
        self._batch.append(request, taken)
        self.generated += len(taken)
        update = Update(request, tuple(taken), text, reason, stop, tuple(scores))
        return update if reason is None else self.finish(update)

    def _advance(self, request: Request, token: int, count: int) -> tuple[str, str | None, int | str | None]:
        """What `token`, output number `count`, lets go, why the request ends with it, if it does, and what stops it."""
        params, detokenizer, text = request.params, request.detokenizer, ""
        may_stop = count > params.min_tokens
        ends = may_stop and token in request.stop_ids
        if detokenizer is not None and (not ends or params.include_stop_str_in_output):
            text = detokenizer.push(token, may_stop=may_stop)
        if ends:
            of_model = token in self._limits.eos_token_ids and not params.ignore_eos
            return text, "stop", None if of_model else token
        if detokenizer is not None and detokenizer.stopped_by is not None:
            return text, "stop", detokenizer.stopped_by
        if request.matcher is not None and request.matcher.finished:
            return text, "stop", None
        return text, "length" if len(request.prompt) + count >= request.max_total else None, None

    def _problem(self, request: Request, token: int) -> str | None:
        """Why the request cannot go on by `token`, if it cannot."""
        if request.error is not None:
            return request.error
        if not 0 <= token < self._limits.vocab_size:
            return "no token can follow: every one is excluded, or the logits are not numbers"
        try:
            if request.matcher is None or request.matcher.accept(token):
                return None
        except Exception as error:  # whatever a grammar does wrong, it ends this request only
            blame_grammar(request, error)
            return request.error
        request.internal = True  # the device drew what the mask excludes
        return f"token {token} does not fit its grammar"

    @staticmethod
    def _error(request: Request, error: str) -> str:
        request.error = f"request {request.id!r} cannot go on: {error}"
        return "error"


def blame_grammar(request: Request, error: Exception) -> None:
    """Note that following the grammar of `request` failed; a `RequestError` is the fault of the grammar itself."""
    request.error, request.internal = f"its grammar failed: {error}", not isinstance(error, RequestError)


def _complete(request: Request) -> bool:
    """Whether no token can follow because the text of a grammar is complete, and only its end is left."""
    if request.matcher is None or request.error is not None:
        return False
    try:
        return request.matcher.end()
    except Exception as error:  # as in `_problem`
        blame_grammar(request, error)
        return False
