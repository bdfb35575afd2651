"""Kinds of JSON values that requests hold: what is accepted, what it becomes, and how documents describe it.

A kind reads a value at a path such as `tools[0].function.name`. It gives back the value that the server works with, or
raises an `ApiError` that names the path. Null is the same as absent wherever a key may be absent. Numbers such as 5.0
are integers.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from inferir.runtime.text.request_values import integral, integrals
from inferir.server.http.http_errors import ApiError

# What may become of a field.
OBEYED = "obeyed"  # it does what it says
IDLE = "no effect"  # accepted, and nothing here could differ by it
REFUSED = "refused"  # a 400 that names it, unless its value asks for nothing
DEPENDS = "depends"  # obeyed, refused or warned about, as the note says

MAX_WARNINGS = 10
"""Unknown fields that are named; finding what was meant takes time that a client must not be able to multiply."""


@dataclass
class Walk:
    """One reading of a body. strict: an unknown field is an error. warnings: one for each of the first of them."""

    strict: bool = False
    warnings: list[str] = field(default_factory=list)
    unknown_fields: int = 0

    def unknown(self, path: str, key: str, known: Iterator[str] | Mapping[str, Any], reason: str = "") -> None:
        """Warn about the key `key` at `path`, or raise `ApiError` for it."""
        self.unknown_fields += 1
        if self.unknown_fields > MAX_WARNINGS:
            return
        name = below(path, key[:100])
        close = [] if reason else difflib.get_close_matches(key[:100], list(known), 1)
        hint = reason or (f"; did you mean {close[0]}?" if close else "")
        text = f"unknown field {name!r}{hint}"
        if self.strict:
            raise ApiError.invalid(text, name)
        self.warnings.append(text)


class Kind(Protocol):
    """A kind of value."""

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        """What the server works with for `value`, which is not null. Raises `ApiError` naming `path`."""
        ...

    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        ...


def below(path: str, key: str) -> str:
    """The path of the key `key` of the object at `path`; that of the body is empty."""
    return f"{path}.{key}" if path else key


def wrong(path: str, wanted: str, value: Any) -> ApiError:
    containers: Mapping[type, str] = {dict: "an object", list: "a list"}
    shown = containers.get(type(value)) or json.dumps(value, ensure_ascii=False)
    return ApiError.invalid(f"{path} must be {wanted}, not {shown[:100]}", path)


@dataclass(frozen=True)
class Anything:
    """Checked where it is used."""

    type: str | None = None

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {} if self.type is None else {"type": self.type}


@dataclass(frozen=True)
class Typed:
    """Any value of one JSON type. wanted: what an error says that it must be; type: the schema's name for it."""

    python: type
    wanted: str
    type: str

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        if not isinstance(value, self.python):
            raise wrong(path, self.wanted, value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": self.type}


FLAG = Typed(bool, "true or false", "boolean")
OBJECT = Typed(dict, "an object", "object")
"""With any keys: its content is the client's own."""


@dataclass(frozen=True)
class Text:
    """A string of at most `most` characters; with `choices`, one of those."""

    choices: tuple[str, ...] = ()
    most: int | None = None

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        if not isinstance(value, str):
            raise wrong(path, "a string", value)
        if self.choices and value not in self.choices:
            raise wrong(path, f"one of {', '.join(map(json.dumps, self.choices))}", value)
        if self.most is not None and len(value) > self.most:
            raise ApiError.invalid(f"{path} has {len(value)} characters; at most {self.most} are allowed", path)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", **({"enum": list(self.choices)} if self.choices else {})}


@dataclass(frozen=True)
class Integer:
    low: int
    high: int | None = None

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        number = integral(value)
        if number is None or number < self.low or (self.high is not None and number > self.high):
            limits = f"of at least {self.low}" if self.high is None else f"from {self.low} to {self.high}"
            raise wrong(path, f"an integer {limits}", value)
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, **({} if self.high is None else {"maximum": self.high})}


@dataclass(frozen=True)
class Items:
    """A list of at most `most` values of one kind."""

    of: Kind
    most: int | None = None

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        if not isinstance(value, list):
            raise wrong(path, "a list", value)
        if self.most is not None and len(value) > self.most:
            raise ApiError.invalid(f"{path} has {len(value)} entries; at most {self.most} are allowed", path)
        for index, one in enumerate(value):
            value[index] = self.of.read(one, f"{path}[{index}]", walk)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.of.schema()}


@dataclass(frozen=True)
class TokenIds:
    """A list of at most `most` token ids, whose range is checked where they are used."""

    most: int

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        ids = integrals(value) if isinstance(value, list) else None
        if ids is None:
            raise ApiError.invalid(f"{path} must be a list of token ids", path)
        if len(ids) > self.most:
            raise ApiError.invalid(f"{path} has {len(ids)} entries; at most {self.most} are allowed", path)
        return ids

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}


@dataclass(frozen=True)
class Either:
    """A value whose kind its JSON type decides. wanted: what an error says that it must be."""

    wanted: str
    text: Kind | None = None
    items: Kind | None = None
    object: Kind | None = None

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        kinds: dict[type, Kind | None] = {str: self.text, list: self.items, dict: self.object}
        kind = kinds.get(type(value))
        if kind is None:
            raise wrong(path, self.wanted, value)
        return kind.read(value, path, walk)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in (self.text, self.items, self.object) if kind is not None]}


@dataclass(frozen=True)
class Off:
    """A field whose only accepted values ask for nothing. hint: what to do instead."""

    values: tuple[Any, ...] = ()
    hint: str = ""

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        if any(value == off and isinstance(value, bool) is isinstance(off, bool) for off in self.values):
            return value
        asked = "" if isinstance(value, dict | list) or not self.values else f" with {json.dumps(value)[:100]}"
        raise ApiError.invalid(f"{path}{asked} is not supported{self.hint}", path)

    def schema(self) -> dict[str, Any]:
        return {"enum": [*self.values, None]}


@dataclass(frozen=True)
class Field:
    """A key of an object. effect: what becomes of it; note: what it does, why nothing, or when."""

    name: str
    kind: Kind
    effect: str
    note: str


class Record:
    """An object with known fields."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self.by_name = {f.name: f for f in fields}

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        if not isinstance(value, dict):
            raise wrong(path, "an object", value)
        for key, given in value.items():
            known = self.by_name.get(key)
            if known is None:
                walk.unknown(path, key, self.by_name)
            elif given is not None:
                value[key] = known.kind.read(given, below(path, key), walk)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {f.name: nullable(f.kind.schema()) for f in self.fields}}


@dataclass(frozen=True)
class Tagged:
    """An object whose fields the value of one of them decides, its tag.

    refused: tags that are known but not supported, each with the rest of a message. otherwise: for any other tag; None
    refuses those. A field of other tags than the object's is a warning, or with `exclusive` an error.
    """

    key: str
    records: Mapping[str, Record]
    refused: Mapping[str, str] = field(default_factory=dict)
    otherwise: Record | None = None
    exclusive: bool = False

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(f.name for record in self.records.values() for f in record.fields)

    def read(self, value: Any, path: str, walk: Walk) -> Any:
        if not isinstance(value, dict):
            raise wrong(path, "an object", value)
        tag, where = value.get(self.key), below(path, self.key)
        if isinstance(tag, str) and tag in self.refused:
            raise ApiError.invalid(f"{where} {json.dumps(tag)} is not supported{self.refused[tag]}", where)
        record = self.records.get(tag) if isinstance(tag, str) else None
        if record is None and (self.otherwise is None or not isinstance(tag, str)):
            raise wrong(where, f"one of {', '.join(map(json.dumps, self.records))}", tag)
        record = record or self.otherwise
        assert record is not None
        for key, given in value.items():
            known = record.by_name.get(key)
            if known is not None:
                if given is not None:
                    value[key] = known.kind.read(given, below(path, key), walk)
            elif key not in self._names:
                walk.unknown(path, key, record.by_name)
            elif given is not None and self.exclusive:
                name = below(path, key)
                raise ApiError.invalid(f"{name} does not go with {where} {json.dumps(tag)}", name)
            elif given is not None and given != []:
                walk.unknown(path, key, record.by_name, f" where {self.key} is {json.dumps(tag)}")
        return value

    def schema(self) -> dict[str, Any]:
        records = [*self.records.values(), *([] if self.otherwise is None else [self.otherwise])]
        return {"anyOf": [record.schema() for record in records]}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value that may be null."""
    if not schema or None in schema.get("enum", ()):
        return schema
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **enum}


def read_body(body: dict[str, Any], record: Record, *, strict: bool) -> list[str]:
    """Check `body` and put its values into the form that the server works with, in place.

    A value of the wrong kind, at any depth, and a known field that asks for something that is not supported are errors
    that name the field's path. Returns a warning for each of the first unknown fields. Raises `ApiError`.
    """
    walk = Walk(strict)
    record.read(body, "", walk)
    more = walk.unknown_fields - MAX_WARNINGS
    return [*walk.warnings, f"and {more} more unknown fields"] if more > 0 else walk.warnings
