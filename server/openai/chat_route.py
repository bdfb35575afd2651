"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.server.engine.messages import TokenEvent
from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import answered, warn, while_connected
from inferir.server.openai.field_table import CHAT
from inferir.server.openai.generation import Answer, Generation
from inferir.server.openai.logprob_fields import chat_logprobs
from inferir.server.openai.parameters import (
    MAX_SEQUENCES,
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
    if n > MAX_SEQUENCES:
        raise ApiError.invalid(f"n={n} is more than {MAX_SEQUENCES} sequences in one request", "n")
    usage, continuous = stream_options(body)
    use, body = await _tool_use(service, body)
    params = engine_params(body, service.sampling.values, _most_tokens(body), None)
    params |= _logprobs(service, body)
    if use is not None and not use.forced and any(t["function"].get("strict") for t in body["tools"]):
        text = 'strict is obeyed only where tool_choice is "required" or names a tool'
        warn(headers, text, "/v1/chat/completions")
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


class _Answer(Answer):
    """The documents that answer a conversation."""

    def __init__(self, service: Service, body: Mapping[str, Any], generation: Generation, use: ToolUse | None) -> None:
        self._use = use
        self._readers = [use.reader() for _ in generation.choices] if use else []
        super().__init__(service, body, generation, "chatcmpl")
        self._logprobs = bool(body.get("logprobs"))

    async def whole(self) -> dict[str, Any]:
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
        return {**out, **self._prompt_scores(0)}

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
                yield first if i else {**first, **self._prompt_scores(0)}

        async for found in self._events():
            if found is None:
                for first in roles():
                    yield first
                continue
            i, event = found
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

    async def _events(self) -> AsyncIterator[tuple[int, TokenEvent] | None]:
        """None where the messages begin, then the events of all. If the prompt's scores are wanted, which the first
        answer's first event brings, none comes before that.
        """
        held: list[tuple[int, TokenEvent]] = []
        begun = not self._scores
        if begun:
            yield None
        async for found in self._generation.events():
            held.append(found)
            if not begun and found[0] == 0:
                begun = True
                held = [held.pop(), *held]
                yield None
            if begun:
                for event in held:
                    yield event
                held = []

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
