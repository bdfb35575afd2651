"""Attributes of a node: an immutable mapping whose equality tells 1, 1.0 and true apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferir.ir.errors import IRError

AttrValue = Any  # None | bool | int | float | str | DType | Dim | Reads | tuple of these | Graph


class Attrs(Mapping[str, AttrValue]):
    """An immutable, ordered-by-name mapping of attributes."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, AttrValue] | None = None) -> None:
        self._items: dict[str, AttrValue] = {k: _freeze(items[k]) for k in sorted(items)} if items else {}

    def __getitem__(self, key: str) -> AttrValue:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Attrs)
            and self._items.keys() == other._items.keys()
            and all(_identical(v, other._items[k]) for k, v in self._items.items())
        )

    def __hash__(self) -> int:
        return hash(tuple(self._items))

    def __repr__(self) -> str:
        return f"Attrs({self._items!r})"

    def replace(self, **changes: AttrValue) -> Attrs:
        return Attrs({**self._items, **changes})


def _identical(a: AttrValue, b: AttrValue) -> bool:
    """Equality that tells 1, 1.0 and true apart, and 0.0 from -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_identical, a, b))
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


def _freeze(value: AttrValue) -> AttrValue:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, (dict, set, bytearray)):
        raise IRError(f"attribute values must be immutable, got {type(value).__name__}")
    return value
