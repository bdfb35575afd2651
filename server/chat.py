"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from inferir.server import fields
from inferir.server.errors import ApiError
from inferir.server.generation import Generation
from inferir.server.logprobs import chat_logprobs, prompt_logprobs
from inferir.server.messages import Logprobs, TokenEvent
from inferir.server.parameters import engine_params, sequences, truncate, wish
from inferir.server.responses import answered, while_connected
from inferir.server.service import Service

if TYPE_CHECKING:
    from inferir.server.tools import ToolUse


async def chat(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """Answer a checked body. Raises `ApiError`."""
    n = sequences(body)
    if n > service.options.max_sequences:
        raise ApiError.invalid(f"n={n} is more than {service.options.max_sequences} sequences in one request", "n")
    usage, continuous = fields.stream_options(body)
    use = _tool_use(service, body)
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    params = engine_params(body, service.sampling.values, wanted, None)
    params |= _logprobs(service, body)
    must_fit = "messages" if body.get("truncate_prompt_tokens") is None else None
    ids = truncate(await service.chat_tokens(body, must_fit), body, service.max_model_len)
    service.check_prompt(ids, "messages")
    generation = Generation(service.client, [ids], params, wish(body, use.spec if use else None))
    answer = _Answer(service, body, generation, use)
    await while_connected(request, generation.start())
    events = answer.stream(usage, continuous) if body.get("stream") else None
    return await answered(request, answer.whole, events, generation.close, headers)


class _Answer:
    """The documents that answer a conversation."""

    def __init__(self, service: Service, body: Mapping[str, Any], generation: Generation, use: ToolUse | None) -> None:
        self._use = use
        self._readers = [use.reader() for _ in generation.choices] if use else []
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = body.get("model") or service.names[0]
        self._generation = generation
        self._ids = bool(body.get("return_token_ids"))
        self._tokenizer = service.tokenizer
        self._logprobs = bool(body.get("logprobs"))
        self._scores = body.get("prompt_logprobs") is not None

    async def whole(self) -> dict[str, Any]:
        """The answer in one document."""
        generation = self._generation
        async for _ in generation.events():
            pass
        choices = []
        for i, c in enumerate(generation.choices):
            message: dict[str, Any] = {"role": "assistant", "content": "".join(c.text), "refusal": None}
            if self._readers:
                reader = self._readers[i]
                reader.feed("".join(c.text), final=True)
                if reader.calls:
                    message |= {"content": reader.content or None, "tool_calls": reader.calls}
            choice: dict[str, Any] = {
                "index": i,
                "message": message,
                "logprobs": self._given_logprobs(c.logprobs),
                "finish_reason": self._finish_reason(i, c.finish_reason),
                "stop_reason": c.stop_reason,
            }
            if self._ids:
                choice["token_ids"] = c.tokens
            choices.append(choice)
        out = {**self._head("chat.completion"), "choices": choices, "usage": generation.usage()}
        if self._ids:
            out["prompt_token_ids"] = generation.prompts[0]
        if self._scores and self._tokenizer is not None:
            out["prompt_logprobs"] = prompt_logprobs(self._tokenizer, generation.choices[0].prompt_logprobs or [])
        return out

    async def stream(self, usage: bool, continuous: bool) -> AsyncIterator[dict[str, Any]]:
        """First the role of each answer, then a chunk per token that brings text."""
        generation = self._generation
        head = self._head("chat.completion.chunk")

        def chunk(i: int, delta: dict[str, Any], finish: str | None = None, stop: int | str | None = None) -> Any:
            choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": finish, "stop_reason": stop}
            out = {**head, "choices": [choice]}
            if usage:
                out["usage"] = generation.usage_of(i) if continuous else None
            return out

        for i in range(len(generation.choices)):
            first = chunk(i, {"role": "assistant", "content": ""})
            if self._ids and i == 0:
                first["prompt_token_ids"] = generation.prompts[0]
            yield first
        async for i, event in generation.events():
            deltas = self._deltas(i, event)
            for delta in deltas[:-1]:
                yield chunk(i, delta)
            if deltas or event.finish_reason or self._ids or self._logprobs:
                reason = self._finish_reason(i, event.finish_reason)
                out = chunk(i, deltas[-1] if deltas else {}, reason, event.stop_reason)
                if event.logprobs is not None:
                    out["choices"][0]["logprobs"] = self._given_logprobs([event.logprobs])
                if self._ids:
                    out["choices"][0]["token_ids"] = [] if event.token is None else [event.token]
                yield out
        if usage:
            yield {**head, "choices": [], "usage": generation.usage()}

    def _deltas(self, i: int, event: TokenEvent) -> list[dict[str, Any]]:
        """What an event adds to message i."""
        if self._readers:
            return self._readers[i].feed(event.text, final=event.finish_reason is not None)
        return [{"content": event.text}] if event.text else []

    def _finish_reason(self, i: int, reason: str | None) -> str | None:
        """An answer that ends after a call ends because of it; one that was forced by name just stops."""
        if reason == "stop" and self._use is not None and self._readers[i].calls and not self._use.named:
            return "tool_calls"
        return reason

    def _given_logprobs(self, given: list[Logprobs]) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, given) if self._logprobs and self._tokenizer is not None else None

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _logprobs(service: Service, body: Mapping[str, Any]) -> dict[str, Any]:
    """`logprobs: true` asks for the log-probabilities of chosen tokens, `top_logprobs` for those of the likeliest."""
    top = body.get("top_logprobs")
    if body.get("logprobs"):
        service.need_tokenizer("logprobs")
        return {"logprobs": top or 0}
    if top:
        raise ApiError.invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return {}


def _tool_use(service: Service, body: Mapping[str, Any]) -> ToolUse | None:
    """What the request does with tools; what that takes is loaded with the first one."""
    if not body.get("tools") and body.get("tool_choice") is None:
        return None
    from inferir.server.tools import tool_use

    return tool_use(body, service.tool_style)
