"""From checked fields to what the engine is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferir.server import fields
from inferir.server.errors import ApiError


def sequences(body: Mapping[str, Any]) -> int:
    """Answers per prompt."""
    n: int = body.get("n") or 1
    best_of = body.get("best_of")
    if best_of is not None and best_of != n:
        raise ApiError.invalid("best_of other than n is not supported", "best_of")
    return n


def engine_params(body: Mapping[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """Fields for `SamplingParams.parse`."""
    return {**fields.sampling_params(body), "max_tokens": max_tokens, **_structured(body)}


def truncate(ids: list[int], body: Mapping[str, Any], max_model_len: int) -> list[int]:
    """The last `truncate_prompt_tokens` ids; -1 means as many as leave room for one token."""
    most = body.get("truncate_prompt_tokens")
    if most is None:
        return ids
    if most == 0:
        raise ApiError.invalid("truncate_prompt_tokens must be -1 or at least 1", "truncate_prompt_tokens")
    return ids[-(most if most > 0 else max_model_len - 1) :]


def _structured(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the text must look like."""
    form = body.get("response_format")
    if form is not None and form.get("type") != "text":
        kind = form.get("type")
        raise ApiError.invalid(f"response_format of type {str(kind)[:100]!r} is not supported", "response_format")
    if body.get("structured_outputs"):
        raise ApiError.invalid("structured_outputs is not supported", "structured_outputs")
    return {}
