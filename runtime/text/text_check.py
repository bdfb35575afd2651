"""What no tokenizer can take: half of a surrogate pair, as Python makes of bytes that are not UTF-8."""

from __future__ import annotations

from inferir.ir.errors import RequestError


def check_text(text: object, field: str) -> None:
    """Raise `RequestError` naming `field` for what is no text, or no UTF-8."""
    if not isinstance(text, str):
        raise RequestError(f"{field} must be text, not {type(text).__name__}", field)
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{field} holds half of a surrogate pair, which no text can contain", field) from None
