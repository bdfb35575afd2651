"""Answers, and what they are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferir.runtime.requests.request import Request, Timing, Update
from inferir.runtime.sampling.token_logprobs import TokenLogprobs


@dataclass(frozen=True)
class Completion:
    """One answer. `token_ids` are the generated tokens, a final end-of-sequence or stop token included; `text` leaves
    that token out.

    `finish_reason` is "stop" (`stop_reason` then names the stop string or stop token; None means end-of-sequence),
    "length", "abort" or "error" (`error` then says why). `logprobs` has an entry per token if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    timing: Timing = field(default_factory=Timing, compare=False)


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt, `n` of them. The properties are those of the first.

    `prompt_logprobs` has an entry per prompt token, None for the first, if asked for. `cached_tokens` are those of the
    prompt that were found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.outputs[0].logprobs


@dataclass
class Job:
    """A request, what it has brought, and the pieces of text that its caller has not taken yet."""

    request: Request
    prompt: str | None
    pieces: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, update: Update) -> None:
        if update.text:
            self.pieces.append(update.text)
            self.text.append(update.text)
        self.logprobs += update.logprobs

    @property
    def finished(self) -> bool:
        return self.request.finish_reason is not None


def request_output(group: Sequence[Job]) -> RequestOutput:
    """The answers to one prompt, all of which are finished."""
    first = group[0].request
    return RequestOutput(
        request_id=first.id if len(group) == 1 else first.id.removesuffix("-0"),
        prompt=group[0].prompt,
        prompt_token_ids=list(first.prompt),
        outputs=[_completion(index, job) for index, job in enumerate(group)],
        prompt_logprobs=first.prompt_logprobs,
        cached_tokens=first.cached_tokens,
    )


def _completion(index: int, job: Job) -> Completion:
    request = job.request
    assert request.finish_reason is not None
    return Completion(
        index=index,
        text="".join(job.text),
        token_ids=list(request.outputs),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        logprobs=None if request.params.logprobs is None else job.logprobs,
        error=request.error,
        timing=request.timing,
    )
