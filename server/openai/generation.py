"""One HTTP request's sequences in the engine: prompts times n, as one stream of events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from inferir.ir.errors import RequestError
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.server.engine import messages as m
from inferir.server.engine.engine_client import EngineClient, Inbox, Job
from inferir.server.engine.messages import TokenEvent
from inferir.server.http.http_errors import ApiError
from inferir.server.openai.logprob_fields import prompt_logprobs
from inferir.server.service import Service

if TYPE_CHECKING:
    from inferir.runtime.structured.spec import StructuredSpec


@dataclass
class Choice:
    """What a sequence has brought so far."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None

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
        body: Mapping[str, Any],
        structured: StructuredSpec | None,
        *,
        discard: bool = False,
    ) -> None:
        """params: for `SamplingParams`; body, structured: what else is wanted of the engine.

        discard: the engine is asked for one token per sequence only to have the prompts scored; it is left out.
        """
        self.client = client
        self._discard = discard
        self.prompts = prompts
        try:
            checked = SamplingParams.parse(params)
        except RequestError as error:
            raise ApiError.from_request_error(error) from None
        self.n = checked.n
        self.choices = [Choice() for _ in range(len(prompts) * self.n)]
        self._message = m.Add("", [], checked.fields(), body.get("priority") or 0, body.get("cache_salt"))
        if structured is not None:
            self._message.structured = (structured.kind, structured.value, structured.source)
        self._jobs: list[Job] = []
        self._inbox: Inbox = asyncio.Queue()

    async def start(self) -> None:
        """Give all sequences to the engine, or none if it refuses one."""
        adding = [asyncio.create_task(self._add(i, prompt)) for i, prompt in enumerate(self.prompts)]
        try:
            for problem in await asyncio.gather(*adding, return_exceptions=True):
                if problem is not None:
                    raise problem
        except BaseException:
            await asyncio.gather(*adding, return_exceptions=True)  # which are cancelled if this was
            await self.close()
            raise

    async def _add(self, index: int, prompt: list[int]) -> None:
        message = msgspec.structs.replace(self._message, prompt=prompt)
        self._jobs += await self.client.add(message, index * self.n, self._inbox)

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

    def usage(self, index: int | None = None) -> dict[str, int]:
        """Usage so far, of one sequence or of all: prompt tokens then count once per prompt."""
        prompts = self.prompts if index is None else [self.prompts[index // self.n]]
        choices = self.choices if index is None else [self.choices[index]]
        prompt, generated = sum(map(len, prompts)), sum(len(c.tokens) for c in choices)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


class Answer:
    """What the documents of all routes say in the same way. prefix: that of their ids."""

    def __init__(self, service: Service, body: Mapping[str, Any], generation: Generation, prefix: str) -> None:
        self._generation = generation
        self._tokenizer = service.tokenizer
        self._ids = bool(body.get("return_token_ids"))
        self._scores = body.get("prompt_logprobs") is not None
        self._id = f"{prefix}-{body.get('request_id') or uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = body.get("model") or service.names[0]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _prompt_scores(self, i: int) -> dict[str, Any]:
        """The field `prompt_logprobs` of sequence i, if it is wanted."""
        if not self._scores or self._tokenizer is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._tokenizer, self._generation.choices[i].prompt_logprobs or [])}
