"""The OpenAPI description of request bodies, from the table of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferir.server import fields

_NUMBERS = (*("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),)
_INTEGERS = ("top_k", "seed", "min_tokens", "prompt_logprobs")
_BOOLEANS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
_TYPES: dict[fields.Check, str] = {fields.boolean: "boolean", fields.string: "string", fields.mapping: "object"}


def request_body(checks: Mapping[str, fields.Check], *, sampling: bool) -> dict[str, Any]:
    """`openapi_extra` of a route."""
    properties = {name: _schema(check) for name, check in checks.items()}
    if sampling:
        properties |= {n: {"type": ["number", "null"]} for n in _NUMBERS}
        properties |= {n: {"type": ["integer", "null"]} for n in _INTEGERS}
        properties |= {n: {"type": ["boolean", "null"]} for n in _BOOLEANS}
        properties |= {n: {} for n in fields.SAMPLING if n not in properties}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _schema(check: fields.Check) -> dict[str, Any]:
    kind = _TYPES.get(check)
    if kind is None:
        kind = {"integer": "integer", "listed": "array"}.get(check.__qualname__.split(".")[0])
    return {"type": [kind, "null"]} if kind else {}
