"""One HTTP request's sequences in the engine: prompts times n, as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from inferir.ir.errors import RequestError
from inferir.runtime.sampling import SamplingParams
from inferir.server.engine_client import EngineClient, Job
from inferir.server.errors import ApiError
from inferir.server.messages import TokenEvent

_SEEDS = 1 << 64


@dataclass
class Choice:
    """What a sequence has brought so far."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, event: TokenEvent) -> None:
        self.text.append(event.text)
        if event.token is not None:
            self.tokens.append(event.token)
        self.finish_reason, self.stop_reason = event.finish_reason, event.stop_reason


class Generation:
    """Sequence number i * n + k is the k-th answer to prompt i."""

    def __init__(self, client: EngineClient, prompts: list[list[int]], params: dict[str, Any], n: int) -> None:
        self.client = client
        self.prompts = prompts
        self.n = n
        self.choices = [Choice() for _ in range(len(prompts) * n)]
        self._params = params
        self._jobs: list[Job] = []
        self._inbox: asyncio.Queue[tuple[int, TokenEvent | ApiError]] = asyncio.Queue()
        try:
            SamplingParams.parse(params)
        except RequestError as error:
            raise ApiError.from_request_error(error) from None

    async def start(self) -> None:
        """Give all sequences to the engine, or none if it refuses one."""
        adding = [
            asyncio.create_task(self.client.add(self.prompts[i // self.n], self._seeded(i % self.n), i, self._inbox))
            for i in range(len(self.choices))
        ]
        try:
            results = await asyncio.gather(*adding, return_exceptions=True)
        except asyncio.CancelledError:
            for task in adding:
                task.cancel()
            await asyncio.gather(*adding, return_exceptions=True)
            self._jobs = [t.result() for t in adding if not t.cancelled() and t.exception() is None]
            await self.close()
            raise
        self._jobs = [r for r in results if isinstance(r, Job)]
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

    def _seeded(self, k: int) -> dict[str, Any]:
        """Parameters of the k-th answer: seeds differ, and are as repeatable as the first."""
        seed = self._params.get("seed")
        if seed is None or k == 0:
            return self._params
        return {**self._params, "seed": seed + k if seed + k < _SEEDS else seed + k - _SEEDS}
