"""One HTTP request's sequences in the engine: prompts times n, as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferir.ir.errors import RequestError
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.server.engine.engine_client import EngineClient, Inbox, Job
from inferir.server.engine.messages import Add, Logprobs, Spec, TokenEvent
from inferir.server.http.http_errors import ApiError


@dataclass(frozen=True)
class Wish:
    """What a request wants of the engine beside its sampling parameters."""

    priority: int = 0
    cache_salt: str | None = None
    structured: Spec | None = None


@dataclass
class Choice:
    """What a sequence has brought so far."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs | None] | None = None

    def add(self, event: TokenEvent) -> None:
        self.text.append(event.text)
        self.tokens += event.tokens
        self.logprobs += event.logprobs
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        self.finish_reason, self.stop_reason = event.finish_reason, event.stop_reason


class Generation:
    """Sequence number i * n + k is the k-th answer to prompt i."""

    def __init__(
        self,
        client: EngineClient,
        prompts: list[list[int]],
        params: dict[str, Any],
        wish: Wish,
        *,
        discard: bool = False,
    ) -> None:
        """discard: the engine is asked for one token per sequence only to have the prompts scored; it is left out."""
        self.client = client
        self._discard = discard
        self.prompts = prompts
        try:
            checked = SamplingParams.parse(params)
        except RequestError as error:
            raise ApiError.from_request_error(error) from None
        self.n = checked.n
        self.choices = [Choice() for _ in range(len(prompts) * self.n)]
        self._params = checked.fields()
        self._wish = wish
        self._jobs: list[Job] = []
        self._inbox: Inbox = asyncio.Queue()

    async def start(self) -> None:
        """Give all sequences to the engine, or none if it refuses one."""
        wish = self._wish
        adding = []
        for i, prompt in enumerate(self.prompts):
            message = Add("", prompt, self._params, wish.priority, wish.cache_salt, wish.structured)
            adding.append(asyncio.create_task(self.client.add(message, i * self.n, self._inbox)))
        try:
            results = await asyncio.gather(*adding, return_exceptions=True)
        except asyncio.CancelledError:
            for task in adding:
                task.cancel()
            results = await asyncio.gather(*adding, return_exceptions=True)
            self._jobs = [job for r in results if not isinstance(r, BaseException) for job in r]
            await self.close()
            raise
        self._jobs = [job for r in results if not isinstance(r, BaseException) for job in r]
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def events(self) -> AsyncIterator[tuple[int, TokenEvent]]:
        """Events of all sequences as they come, until all have ended. Raises the `ApiError` that ends them early."""
        unfinished = len(self.choices)
        while unfinished:
            index, event = await self._inbox.get()
            if isinstance(event, ApiError):
                raise event
            if self._discard:
                event = msgspec.structs.replace(
                    event, tokens=(), text="", logprobs=(), finish_reason="length", stop_reason=None
                )
            self.choices[index].add(event)
            unfinished -= event.finish_reason is not None
            yield index, event

    async def close(self) -> None:
        """Stop what still runs."""
        for job in self._jobs:
            if not job.finished:
                await self.client.abort(job)

    def usage(self) -> dict[str, int]:
        """Prompt tokens count once per prompt, generated ones over all sequences."""
        prompt = sum(len(p) for p in self.prompts)
        generated = sum(len(c.tokens) for c in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}

    def usage_of(self, index: int) -> dict[str, int]:
        """Usage of one sequence so far."""
        prompt, generated = len(self.prompts[index // self.n]), len(self.choices[index].tokens)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
