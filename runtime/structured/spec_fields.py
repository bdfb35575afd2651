"""Request fields that ask for structure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferir.ir.errors import RequestError
from inferir.runtime.structured.closing import closed
from inferir.runtime.structured.spec import StructuredSpec

CLOSE = "disable_additional_properties"
_KEYS = {"json": "json_schema", **{k: k for k in ("json_object", "regex", "choice", "grammar")}}


def structured_spec(body: Mapping[str, Any]) -> StructuredSpec | None:
    """What the fields `structured_outputs` and `response_format` of a request ask for; None for plain text.

    structured_outputs: an object with one of `json` (a schema, as an object or as text), `json_object` (true), `regex`,
    `choice`, `grammar`; beside `json`, `disable_additional_properties` (true) closes its objects (see `closing.py`).
    response_format: {"type": "text" | "json_object"} or {"type": "json_schema", "json_schema": {"name": ..., "schema":
    {...}}}, whose objects `strict` (true) closes. Raises `RequestError` naming the field.
    """
    own = one_of(body.get("structured_outputs"), "structured_outputs")
    openai = _response_format(body.get("response_format"))
    if own is not None and openai is not None:
        raise RequestError("structured_outputs and response_format exclude each other", "structured_outputs")
    return own or openai


def one_of(value: Any, field: str) -> StructuredSpec | None:
    """The specification of an object with one of the keys above; None if all are absent. Raises `RequestError`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"{field} must be an object", field)
    close = value.get(CLOSE)
    if close is not None and not isinstance(close, bool):
        raise RequestError(f"{field}.{CLOSE} must be true or false", field)
    for key in value:
        if key not in _KEYS and key != CLOSE:
            raise RequestError(f"{field}: unknown key {str(key)[:80]!r}; use one of {', '.join(_KEYS)}", field)
    given = [k for k, v in value.items() if k in _KEYS and v is not None and not (k == "json_object" and v is False)]
    if close and given != ["json"]:
        raise RequestError(f"{field}.{CLOSE} goes with json only", field)
    if len(given) > 1:
        raise RequestError(f"{field}: {given[0]} and {given[1]} exclude each other", field)
    if not given:
        return None
    wanted = _closed(value["json"]) if close else value[given[0]]
    return StructuredSpec(_KEYS[given[0]], wanted, f"{field}.{given[0]}")  # type: ignore[arg-type]


def _closed(schema: Any) -> Any:
    """A schema, or its JSON text, with closed objects; what is neither is left to its check."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return schema
    return closed(schema)


def _response_format(value: Any) -> StructuredSpec | None:
    field = "response_format"
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredSpec("json_object", None, field)
    if kind != "json_schema":
        raise RequestError(f'{field}.type must be "text", "json_object" or "json_schema"', field)
    described = value.get("json_schema")
    if not isinstance(described, Mapping) or "schema" not in described:
        raise RequestError(f"{field}.json_schema must be an object with a schema", field)
    wanted = _closed(described["schema"]) if described.get("strict") is True else described["schema"]
    return StructuredSpec("json_schema", wanted, f"{field}.json_schema.schema")
