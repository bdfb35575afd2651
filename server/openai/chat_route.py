"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.server.engine.messages import TokenEvent
from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import answered, warn, while_connected
from inferir.server.openai.field_table import CHAT
from inferir.server.openai.generation import Generation
from inferir.server.openai.logprob_fields import chat_logprobs, prompt_logprobs
from inferir.server.openai.parameters import (
    check_priority,
    engine_params,
    sequences,
    stream_options,
    structure,
    truncate,
)
from inferir.server.openai.route import Route
from inferir.server.service import Service

if TYPE_CHECKING:
    from inferir.server.openai.tool_use import ToolUse


async def chat(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """Answer a checked body. Raises `ApiError`."""
    n = sequences(body)
    if n > service.options.max_sequences:
        raise ApiError.invalid(f"n={n} is more than {service.options.max_sequences} sequences in one request", "n")
    usage, continuous = stream_options(body)
    use, body = await _tool_use(service, body)
    params = engine_params(body, service.sampling.values, _most_tokens(body), None)
    params |= _logprobs(service, body)
    if use is not None and not use.forced and any(t["function"].get("strict") for t in body["tools"]):
        warn(headers, "/v1/chat/completions", 'strict is obeyed only where tool_choice is "required" or names a tool')
    if use is not None and use.marks:
        params["kept_special_ids"] = list(use.marks.values())
    must_fit = "messages" if body.get("truncate_prompt_tokens") is None else None
    ids = truncate(await service.chat_tokens(body, headers, must_fit), body, service.max_model_len)
    service.check_prompt(ids, "messages")
    check_priority(service, body)
    generation = Generation(service.client, [ids], params, body, await structure(service, body, *_structure(use)))
    answer = _Answer(service, body, generation, use)
    await while_connected(request, generation.start())
    events = answer.stream(usage, continuous) if body.get("stream") else None
    return await answered(request, answer.whole, events, generation.close, headers)


def _structure(use: ToolUse | None) -> tuple[Any, Any]:
    """What tools add to the structure of an answer, as `wish` takes it."""
    if use is None:
        return None, None
    return use.spec, None if use.forced else use.beside


class _Answer:
    """The documents that answer a conversation."""

    def __init__(self, service: Service, body: Mapping[str, Any], generation: Generation, use: ToolUse | None) -> None:
        self._use = use
        self._readers = [use.reader() for _ in generation.choices] if use else []
        self._id = f"chatcmpl-{body.get('request_id') or uuid.uuid4().hex}"
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
                message["content"] = reader.content
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
        return {**out, **self._prompt_scores()}

    async def stream(self, usage: bool, continuous: bool) -> AsyncIterator[dict[str, Any]]:
        """First the role of each answer, then a chunk per step that brings text."""
        generation = self._generation
        head = self._head("chat.completion.chunk")

        def chunk(i: int, delta: dict[str, Any], finish: str | None = None, stop: int | str | None = None) -> Any:
            choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": finish, "stop_reason": stop}
            out = {**head, "choices": [choice]}
            if usage:
                out["usage"] = generation.usage(i) if continuous else None
            return out

        def roles() -> Iterator[Any]:
            for i in range(len(generation.choices)):
                first = chunk(i, {"role": "assistant", "content": ""})
                if self._ids and i == 0:
                    first["prompt_token_ids"] = generation.prompts[0]
                yield first if i else {**first, **self._prompt_scores()}

        begun = not self._scores
        if begun:
            for first in roles():
                yield first
        async for i, event in self._events():
            if not begun:
                begun = True
                for first in roles():
                    yield first
            deltas = self._deltas(i, event)
            for delta in deltas[:-1]:
                yield chunk(i, delta)
            if deltas or event.finish_reason or self._ids or self._logprobs:
                reason = self._finish_reason(i, event.finish_reason)
                out = chunk(i, deltas[-1] if deltas else {}, reason, event.stop_reason)
                if event.logprobs:
                    out["choices"][0]["logprobs"] = self._given_logprobs(event.logprobs)
                if self._ids:
                    out["choices"][0]["token_ids"] = list(event.tokens)
                yield out
        if usage:
            yield {**head, "choices": [], "usage": generation.usage()}

    async def _events(self) -> AsyncIterator[tuple[int, TokenEvent]]:
        """Events of all answers. If the prompt's scores are wanted, which the first answer's first event brings, none
        comes before that.
        """
        held: list[tuple[int, TokenEvent]] = []
        scored = not self._scores
        async for i, event in self._generation.events():
            scored = scored or i == 0
            if not scored:
                held.append((i, event))
                continue
            yield i, event
            for other in held:
                yield other
            held = []

    def _prompt_scores(self) -> dict[str, Any]:
        """The field `prompt_logprobs`, if it is wanted."""
        if not self._scores or self._tokenizer is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._tokenizer, self._generation.choices[0].prompt_logprobs or [])}

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

    def _given_logprobs(self, given: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
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


def _most_tokens(body: Mapping[str, Any]) -> int | None:
    """Tokens of an answer at most, which two fields may say."""
    newer, older = body.get("max_completion_tokens"), body.get("max_tokens")
    if newer is not None and older is not None and newer != older:
        text = f"max_tokens={older} and max_completion_tokens={newer} contradict each other"
        raise ApiError.invalid(text, "max_tokens")
    return newer if older is None else older


async def _tool_use(service: Service, body: Mapping[str, Any]) -> tuple[ToolUse | None, Mapping[str, Any]]:
    """What the request does with tools, and its fields with the tools that the template gets.

    What that takes is loaded with the first request that has tools.
    """
    if not body.get("tools") and body.get("tool_choice") is None:
        return None, body
    from inferir.server.openai.tool_use import shown_tools, tool_use

    use = await service.in_thread(tool_use, body, service.tool_style, service.tokenizer)
    return use, {**body, "tools": shown_tools(body, without=service.options.hide_unused_tools)}


ROUTE = Route("/v1/chat/completions", CHAT, chat)
