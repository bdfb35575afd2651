"""Cache keys: everything that decides what a generated file contains, and nothing else.

A key is a mapping of named components (region text, bucket, target, options, source hash, tool versions) made of
plain JSON values. Its digest is the SHA-256 of the components' canonical JSON, so it is the same in every process and
on every machine. Paths, users, host names and times have no place in a key: `key_fields` refuses a path.

Options enter a key by opt-out: `key_fields` takes every field of a record except those named in `ignore`, so a field
that is added later is part of the key until somebody decides otherwise.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from inferir.ir.errors import CacheError

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

_SHOWN = 200  # a longer string is remembered by its hash only


@dataclass(frozen=True)
class CacheKey:
    """The named components of a key. Raises CacheError, naming the component, for a value that is not plain JSON."""

    components: Mapping[str, JSON]

    def __post_init__(self) -> None:
        if not self.components:
            raise CacheError("cache key: a key needs at least one component")
        object.__setattr__(self, "components", _plain(self.components, ""))

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.components).encode()).hexdigest()

    @cached_property
    def summary(self) -> Mapping[str, JSON]:
        """The components with every long text replaced by its hash: small enough to keep beside each entry."""
        return {name: _short(value) for name, value in self.components.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def canonical_json(value: JSON) -> str:
    """The one text of a JSON value: sorted keys, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def leaves(components: Mapping[str, JSON]) -> dict[tuple[str, ...], str]:
    """The canonical text of every value that is not a mapping (or is an empty one), by the names that lead to it."""
    found: dict[tuple[str, ...], str] = {}
    for name, value in components.items():
        if isinstance(value, Mapping) and value:
            found.update({(name, *path): text for path, text in leaves(value).items()})
        else:
            found[(name,)] = canonical_json(value)
    return found


def differences(stored: Mapping[str, JSON], wanted: Mapping[str, JSON]) -> tuple[str, ...]:
    """Where two key summaries differ, down to single options, as short text; empty if they are the same."""
    old, new = leaves(stored), leaves(wanted)
    return tuple(
        f"{'.'.join(path)} (stored {_shown(old.get(path))}, now {_shown(new.get(path))})"
        for path in sorted({path for path, _ in old.items() ^ new.items()})
    )


def key_fields(options: object, ignore: frozenset[str] = frozenset()) -> dict[str, JSON]:
    """Every field of a dataclass or msgspec record as a key component, except those in `ignore`.

    Nested records are taken whole. Raises CacheError if `ignore` names a field that does not exist (a stale list would
    hide a renamed field) or if a field's value has no canonical form, such as a path or a function.
    """
    names = _field_names(options)
    if names is None:
        raise CacheError(f"cache key: {type(options).__name__} is not a record with fields")
    unknown = ignore - set(names)
    if unknown:
        raise CacheError(f"cache key: {type(options).__name__} has no field {', '.join(sorted(unknown))} to ignore")
    return {name: _plain(getattr(options, name), name) for name in names if name not in ignore}


def _field_names(value: object) -> list[str] | None:
    if is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in fields(value)]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return None


def _plain(value: Any, path: str) -> Any:
    """A private copy of a value as plain JSON: records by their fields, enums by their name, sets in order.

    Raises `CacheError` naming what has no such form.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, Enum):
        return value.name
    if type(value) is float:
        if not math.isfinite(value):
            raise CacheError(f"cache key: {path} is {value}, which JSON cannot hold")
        return value
    names = _field_names(value)
    if names is not None:
        value = {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return {_name(key, path): _plain(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, path) for item in value), key=canonical_json)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    raise CacheError(f"cache key: {path} is a {type(value).__name__}; only plain JSON values have a stable form")


def _name(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise CacheError(f"cache key: {path or 'the key'} has the name {key!r}, which is not text")
    return key


def _short(value: JSON) -> JSON:
    if isinstance(value, str) and len(value) > _SHOWN:
        return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()}"
    if isinstance(value, Mapping):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return value


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= 60 else f"{text[:40]}…{text[-16:]}"
