"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.runtime.text.request_values import integrals
from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import answered, while_connected
from inferir.server.openai.field_table import COMPLETIONS
from inferir.server.openai.generation import Answer, Generation
from inferir.server.openai.logprob_fields import CompletionLogprobs, joined
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

DEFAULT_MAX_TOKENS = 16


async def completions(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """Answer a checked body. Raises `ApiError`."""
    n = sequences(body)
    usage, continuous = stream_options(body)
    params = engine_params(body, service.sampling.values, body.get("max_tokens"), DEFAULT_MAX_TOKENS)
    scoring = params["max_tokens"] == 0
    if scoring:
        _check_scoring(body)
        params["max_tokens"] = 1  # which is not given out
    if body.get("logprobs") is not None:
        service.need_tokenizer("logprobs")
        params["logprobs"] = body["logprobs"]
        if body.get("echo"):
            params["prompt_logprobs"] = max(body["logprobs"], body.get("prompt_logprobs") or 0)
    check_priority(service, body)
    prompts = await _prompts(service, body, n)
    generation = Generation(service.client, prompts, params, body, await structure(service, body), discard=scoring)
    echoes = _echoes(service, body, prompts)
    answer = _Answer(service, body, generation, echoes)
    await while_connected(request, generation.start())
    events = answer.stream(usage, continuous) if body.get("stream") else None
    return await answered(request, answer.whole, events, generation.close, headers)


class _Answer(Answer):
    """The documents that answer a request."""

    def __init__(self, service: Service, body: Mapping[str, Any], generation: Generation, echoes: list[str]) -> None:
        super().__init__(service, body, generation, "cmpl")
        self._echoes = echoes
        self._logprobs = body.get("logprobs") is not None
        skip = body.get("skip_special_tokens")
        self._fields: list[CompletionLogprobs] = []
        if self._logprobs and service.tokenizer is not None:
            skip_special = skip is None or bool(skip)
            self._fields = [CompletionLogprobs(service.tokenizer, len(e), skip_special=skip_special) for e in echoes]

    async def whole(self) -> dict[str, Any]:
        generation = self._generation
        async for _ in generation.events():
            pass
        choices = []
        for i, c in enumerate(generation.choices):
            choice = self._choice(i, self._echoes[i] + "".join(c.text), c.finish_reason, c.stop_reason)
            choice["logprobs"] = self._given_logprobs(i, c.logprobs, first=True, final=True)
            choice |= self._prompt_scores(i)
            if self._ids:
                choice |= {"token_ids": c.tokens, "prompt_token_ids": generation.prompts[i // generation.n]}
            choices.append(choice)
        return {**self._head("text_completion"), "choices": choices, "usage": generation.usage()}

    async def stream(self, usage: bool, continuous: bool) -> AsyncIterator[dict[str, Any]]:
        """A chunk per step that brings text."""
        generation = self._generation
        begun: set[int] = set()
        async for i, event in generation.events():
            first = i not in begun
            bare = not (event.text or event.finish_reason or (first and (self._echoes[i] or self._scores)))
            if bare and not (self._ids or self._logprobs):
                continue
            begun.add(i)
            text = self._echoes[i] + event.text if first else event.text
            choice = self._choice(i, text, event.finish_reason, event.stop_reason)
            if self._fields:
                final = event.finish_reason is not None
                choice["logprobs"] = self._given_logprobs(i, event.logprobs, first=first, final=final)
            if self._ids:
                choice["token_ids"] = list(event.tokens)
                if first:
                    choice["prompt_token_ids"] = generation.prompts[i // generation.n]
            if first:
                choice |= self._prompt_scores(i)
            chunk = {**self._head("text_completion"), "choices": [choice]}
            if usage:
                chunk["usage"] = generation.usage(i) if continuous else None
            yield chunk
        if usage:
            yield {**self._head("text_completion"), "choices": [], "usage": generation.usage()}

    def _given_logprobs(
        self, i: int, given: Sequence[TokenLogprobs], *, first: bool, final: bool
    ) -> dict[str, Any] | None:
        """Log-probabilities of the next tokens of sequence i, behind those of an echoed prompt at first."""
        if not self._fields:
            return None
        scores = self._generation.choices[i].prompt_logprobs
        if not (first and self._echoes[i] and scores is not None):
            return self._fields[i].next(given, final=final)
        echoed = self._fields[i].echoed(self._generation.prompts[i // self._generation.n], scores)
        return joined(echoed, self._fields[i].next(given, final=final))

    def _choice(self, i: int, text: str, finish: str | None, stop: int | str | None) -> dict[str, Any]:
        return {"index": i, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": stop}


def _check_scoring(body: Mapping[str, Any]) -> None:
    """`max_tokens: 0` gives the prompt back, with its log-probabilities if they are wanted; it makes no answer."""
    if not body.get("echo"):
        raise ApiError.invalid("max_tokens is 0, which only makes sense with echo", "max_tokens")
    if body.get("min_tokens"):
        raise ApiError.invalid(f"min_tokens={body['min_tokens']} is more than max_tokens=0", "min_tokens")
    if body.get("structured_outputs") or (body.get("response_format") or {"type": "text"}) != {"type": "text"}:
        raise ApiError.invalid("max_tokens is 0, which leaves no text to structure", "max_tokens")


async def _prompts(service: Service, body: Mapping[str, Any], n: int) -> list[list[int]]:
    """Token ids of the prompt: a string, token ids, or a list of either."""
    prompt = body.get("prompt")
    if prompt is None:
        raise ApiError.invalid("prompt is required", "prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise ApiError.invalid("prompt must be a string, token ids, or a list of either, and not empty", "prompt")
    if len(prompt) * n > MAX_SEQUENCES:
        raise ApiError.invalid(
            f"{len(prompt)} prompts times n={n} are more than {MAX_SEQUENCES} sequences in one request", "prompt"
        )
    special = body.get("add_special_tokens")
    must_fit = "prompt" if body.get("truncate_prompt_tokens") is None else None
    out = []
    for one in prompt:
        if type(one) is not type(prompt[0]):
            raise ApiError.invalid("prompt mixes text and token ids", "prompt")
        if isinstance(one, str):
            service.need_tokenizer("prompt")
            ids = await service.in_thread(
                service.encode, one, add_special_tokens=special is None or special, must_fit=must_fit
            )
        elif isinstance(one, list) and (given := integrals(one)) is not None:
            ids = given
        else:
            raise ApiError.invalid("prompt must be a string, token ids, or a list of either", "prompt")
        ids = truncate(ids, body, service.max_model_len)
        service.check_prompt(ids, "prompt")
        out.append(ids)
    return out


def _echoes(service: Service, body: Mapping[str, Any], prompts: list[list[int]]) -> list[str]:
    """What stands before the text of each sequence: its prompt, with `echo`."""
    n = sequences(body)
    if not body.get("echo"):
        return [""] * (len(prompts) * n)
    tokenizer = service.need_tokenizer("echo")
    skip = body.get("skip_special_tokens")
    texts = [tokenizer.decode(p, skip_special_tokens=skip is None or bool(skip)) for p in prompts]
    return [text for text in texts for _ in range(n)]


ROUTE = Route("/v1/completions", COMPLETIONS, completions)
