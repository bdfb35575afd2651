"""Request bodies: read under limits, and parsed strictly, so that every bad one is a 4xx with a reason."""

from __future__ import annotations

import asyncio
import json
import math
import time
from email.message import Message
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from inferir.server.http.content_coding import content_codings, decoded
from inferir.server.http.http_errors import ApiError, too_large
from inferir.server.http.responses import ClientGoneError

MAX_BYTES = 8 << 20
READ_SECONDS = 30.0
DISCARDED_BYTES = 64 << 20
DISCARD_SECONDS = 5.0
DISCARD_IDLE_SECONDS = 0.2
"""What is still read of a body that is too large: so much, for so long, while it keeps coming."""

_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


def has_body(request: Request) -> bool:
    """Whether the request's headers announce a body."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


async def read_json(request: Request, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The body as a JSON object of at most `limit` bytes.

    Raises `ApiError` with status 400, 408, 413 or 415, and `ClientGoneError` if the client leaves before its end.
    """
    _check_type(request.headers.getlist("content-type"))
    codings = content_codings(request.headers.getlist("content-encoding"))
    try:
        data = await asyncio.wait_for(_read(request, limit), READ_SECONDS)
        return parse_object(decoded(data, codings, limit))
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {READ_SECONDS:g} s") from None
    except ClientDisconnect:
        raise ClientGoneError from None


def _check_type(headers: list[str]) -> None:
    """Raise `ApiError` for a body that says it is no JSON in UTF-8."""
    if not headers:
        return
    message = Message()
    message["content-type"] = ", ".join(headers)
    kind, charset = message.get_content_type(), message.get_param("charset")
    given = headers[0].split(";")[0].strip().lower()
    if len(headers) > 1 or given != kind or (kind != "application/json" and not kind.endswith("+json")):
        raise ApiError(400, f"the content type is {', '.join(headers)[:100]!r}; send application/json")
    name = charset if isinstance(charset, str) else "utf-8" if charset is None else charset[2]
    if name.strip().lower() not in _CHARSETS:
        raise ApiError(415, f"the charset of the body is {name[:40]!r}; send UTF-8")


async def _read(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limit:
        await _discard(request)
        raise too_large(limit)
    out = bytearray()
    async for part in request.stream():
        out += part
        if len(out) > limit:
            await _discard(request)
            raise too_large(limit)
    return bytes(out)


async def _discard(request: Request) -> None:
    """Read on for a while: a connection that is closed over unread data may lose the answer on its way."""
    if "expect" in request.headers:  # the client waits to be asked for the body
        return
    left, end = DISCARDED_BYTES, time.monotonic() + DISCARD_SECONDS
    while left > 0 and time.monotonic() < end:
        try:
            message = await asyncio.wait_for(request.receive(), DISCARD_IDLE_SECONDS)
        except TimeoutError:
            return
        left -= len(message.get("body", b""))
        if not message.get("more_body", False):  # the end, or the client has gone
            return


def parse_object(body: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, no duplicate keys, no NaN, infinities or numbers that become one, no lone surrogates."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the body has a lone surrogate, which is no text") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start} is invalid") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ApiError(400, f"the key {key[:100]!r} appears twice", key[:100])
            seen.add(key)
    return out


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value
