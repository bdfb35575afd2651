"""Values as requests may hold them: integers as JSON has them, texts that have a form in UTF-8."""

from __future__ import annotations

from typing import Any

from inferir.ir.errors import RequestError


def integral(value: Any) -> int | None:
    """`value` as an integer: 5.0 is one; None for true, for what is no number, and for a fraction."""
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


def check_text(text: object, field: str) -> None:
    """Raise `RequestError` naming `field` for what is no text, and for half of a surrogate pair, which no tokenizer
    takes; Python makes such of bytes that are not UTF-8.
    """
    if not isinstance(text, str):
        raise RequestError(f"{field} must be text, not {type(text).__name__}", field)
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{field} holds half of a surrogate pair, which no text can contain", field) from None
