"""Request fields that ask for structure, and the option of some to close objects: to have the keys that a schema names
and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inferir.ir.errors import RequestError
from inferir.runtime.structured.references import BRANCHES, BrokenReferenceError, Resolver, mapped, parts
from inferir.runtime.structured.spec import StructuredSpec

CLOSE = "disable_additional_properties"
_SAY_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
_KEYS = {"json": "json_schema", **{k: k for k in ("json_object", "regex", "choice", "grammar")}}


def structured_spec(body: Mapping[str, Any]) -> StructuredSpec | None:
    """What the fields `structured_outputs` and `response_format` of a request ask for; None for plain text.

    structured_outputs: an object with one of `json` (a schema, as an object or as text), `json_object` (true), `regex`,
    `choice`, `grammar`; beside `json`, `disable_additional_properties` (true) closes its objects (see `closed`).
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


def closed(schema: Any) -> Any:
    """`schema` (parsed JSON) with `additionalProperties: false` in every object that names properties and says nothing
    of others.

    Objects that several schemas describe together (`allOf`, or keywords beside references and alternatives) stay as
    they are, since each of them would forbid what the others name.
    """
    try:
        return _Closer(schema).of(schema)
    except RecursionError:
        return schema  # refused for its depth where it is checked


class _Closer:
    def __init__(self, root: Any) -> None:
        self._resolver = Resolver(root)
        self._shared: set[int] = set()
        self._find(root)

    def _find(self, schema: Any) -> None:
        """Remember schemas that describe an object together with others."""
        if not isinstance(schema, dict):
            return
        sources = list(self._sources(schema))
        if len(sources) + ("properties" in schema) > 1:
            self._share(schema)
        for _, part in parts(schema):
            self._find(part)

    def _sources(self, schema: dict[str, Any]) -> Iterator[list[Any]]:
        """For each reference, part of `allOf` and list of alternatives: the schemas that it brings to the place."""
        if isinstance(schema.get("$ref"), str):
            try:
                yield [self._resolver.resolve(schema["$ref"])[1]]
            except BrokenReferenceError:
                yield []
        for key in BRANCHES:
            listed = schema.get(key)
            if isinstance(listed, list):
                yield from ([part] for part in listed) if key == "allOf" else [listed]

    def _share(self, schema: Any) -> None:
        if not isinstance(schema, dict) or id(schema) in self._shared:
            return
        self._shared.add(id(schema))
        for source in self._sources(schema):
            for part in source:
                self._share(part)

    def of(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        out = mapped(schema, self.of)
        if "properties" in schema and id(schema) not in self._shared and not any(k in schema for k in _SAY_OTHERS):
            out["additionalProperties"] = False
        return out
