"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferir.server.http.http_errors import ApiError
from inferir.server.http.responses import json_response
from inferir.server.openai.field_table import DETOKENIZE, TOKENIZE
from inferir.server.openai.route import Route
from inferir.server.service import Service


async def tokenize(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """Token ids of a text or of a conversation."""
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise ApiError.invalid("give either prompt or messages", "prompt")
    tokenizer = service.need_tokenizer("prompt")
    if body.get("messages") is not None:
        ids = await service.chat_tokens(body, headers)
    else:
        _check_plain(body)
        special = body.get("add_special_tokens")
        ids = await service.in_thread(service.encode, body["prompt"], add_special_tokens=special is None or special)
    out = {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids, "token_strs": None}
    if body.get("return_token_strs"):
        out["token_strs"] = [tokenizer.token(i) for i in ids]
    return json_response(out, headers=headers)


def _check_plain(body: Mapping[str, Any]) -> None:
    """Raise `ApiError` for a field that only a conversation has, and that would be ignored beside a text."""
    for name in ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if body.get(name):
            raise ApiError.invalid(f"{name} needs messages", name)


async def detokenize(service: Service, request: Request, body: Mapping[str, Any], headers: dict[str, str]) -> Response:
    """The text of token ids, special tokens included."""
    ids = body.get("tokens")
    if ids is None:
        raise ApiError.invalid("tokens must be a list of token ids", "tokens")
    tokenizer = service.need_tokenizer("tokens")
    bad = next((i for i in ids if not 0 <= i < service.manifest.model.vocab_size), None)
    if bad is not None:
        raise ApiError.invalid(f"token id {bad} is outside the vocabulary", "tokens")
    text = await service.in_thread(tokenizer.decode, ids, skip_special_tokens=False)
    return json_response({"prompt": text}, headers=headers)


TOKENIZE_ROUTE = Route("/tokenize", TOKENIZE, tokenize)
DETOKENIZE_ROUTE = Route("/detokenize", DETOKENIZE, detokenize)
