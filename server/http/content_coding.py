"""Compressed bodies, by the header `content-encoding`, decoded under the limit of a body."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from inferir.server.http.http_errors import ApiError, too_large

MAX_CODINGS = 4
_SUPPORTED = ("gzip", "x-gzip", "deflate", "identity")
_ACCEPTED = {"accept-encoding": "gzip, deflate"}


def content_codings(headers: Sequence[str]) -> list[str]:
    """Codings of a body in the order in which they were applied. Raises `ApiError` 415 for one that is not known."""
    names = [name.strip().lower() for header in headers for name in header.split(",") if name.strip()]
    for name in names:
        if name not in _SUPPORTED:
            text = f"the content encoding {name[:40]!r} is not supported; send gzip, deflate or plain JSON"
            raise ApiError(415, text, headers=_ACCEPTED)
    if len(names) > MAX_CODINGS:
        raise ApiError(415, f"the body has {len(names)} content encodings; send at most {MAX_CODINGS}")
    return [name for name in names if name != "identity"]


def decoded(data: bytes, codings: Sequence[str], limit: int) -> bytes:
    """`data` without its codings. Raises `ApiError`: 413 for more than `limit` bytes at any stage, 400 for bad data."""
    for name in reversed(codings):
        try:
            data = _inflated(data, name, limit)
        except (zlib.error, EOFError) as error:
            raise ApiError(400, f"the body cannot be decoded as {name}: {error}") from None
    return data


def _inflated(data: bytes, name: str, limit: int) -> bytes:
    """The content of all members of a gzip stream, or of a zlib stream, whose head some senders leave out."""
    out = b""
    while True:
        decoder = zlib.decompressobj(_window_bits(data, name))
        out += decoder.decompress(data, limit + 1 - len(out))
        if len(out) > limit or decoder.unconsumed_tail:
            raise too_large(limit)
        if not decoder.eof:
            raise EOFError("it ends early")
        data = decoder.unused_data
        if not data:
            return out
        if name == "deflate":
            raise EOFError("something follows its end")


def _window_bits(data: bytes, name: str) -> int:
    if name != "deflate":
        return zlib.MAX_WBITS | 16
    wrapped = len(data) > 1 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
