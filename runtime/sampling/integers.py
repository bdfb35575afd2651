"""Integers as JSON has them: 5.0 is one, true and 5.5 are none."""

from __future__ import annotations

from typing import Any


def integral(value: Any) -> int | None:
    """`value` as an integer; None if it is no number or has a fraction."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def integrals(values: list[Any] | tuple[Any, ...]) -> list[int] | None:
    """All of `values` as integers; None if one is none."""
    if all(type(v) is int for v in values):
        return list(values)
    out = [integral(v) for v in values]
    return None if None in out else out  # type: ignore[return-value]
