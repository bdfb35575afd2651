"""A small HTTP client for talking to a server of the OpenAI API: JSON documents and server-sent events.

It uses one connection per request and only the standard library, so that it costs the machine little.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import Any
from urllib.parse import urlsplit

from inferir.cli.event_stream import EventReader, ServerEvent
from inferir.ir.errors import InferirError

DONE = "[DONE]"
_LINE_LIMIT = 1 << 24
_INTERIM_LIMIT = 100  # answers of status 1xx before the answer itself


class HttpError(InferirError):
    """The server cannot be reached, or answers with an error or with something else than HTTP.

    status: that of the answer, if there was one. unreachable: whether no connection could be made.
    """

    def __init__(self, message: str, status: int | None = None, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.unreachable = unreachable


class StreamEndError(HttpError):
    """A stream ended properly, but without saying that it is complete."""


@dataclass(frozen=True)
class Client:
    """A server at `url`, with or without the path /v1; with `uds`, at that Unix socket, and `url` only names the host.

    Raises `HttpError` for a `url` that is none.
    """

    url: str
    api_key: str | None = None
    uds: str | None = None

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.strip() and self.api_key.isprintable()):
            raise HttpError("--api-key: the key is empty, or holds a character that a header cannot carry")
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        except ValueError:
            valid = False
        if not valid:
            raise HttpError(f"--url: {self.url!r} is not an address such as http://127.0.0.1:8000")
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1").rstrip("/"))

    @property
    def place(self) -> str:
        """What messages call the server."""
        return self.url if self.uds is None else f"unix:{self.uds}"

    async def get(self, path: str) -> Any:
        """The JSON document at `path`. Raises `HttpError`."""
        body = b"".join([part async for part in self._parts("GET", path, None)])
        try:
            return json.loads(body)
        except ValueError:
            raise HttpError(f"{self.place}{path}: the answer is not JSON") from None

    async def find_model(self, wanted: str | None) -> tuple[str, int | None]:
        """Name of the wanted model, or of the server's first, and its context length if the server tells it.

        Raises `HttpError` if the server cannot be reached or does not serve it.
        """
        answer = await self.get("/v1/models")
        try:
            served = [(str(m["id"]), m.get("max_model_len")) for m in answer["data"]]
        except (KeyError, TypeError, AttributeError):
            raise HttpError(f"{self.place}/v1/models: the answer is no list of models") from None
        found = next((model for model in served if wanted in (None, model[0])), None)
        if found is None:
            names = ", ".join(name for name, _ in served)
            raise HttpError(f"{self.place} does not serve {wanted!r}; it serves {names or 'nothing'}")
        return found

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """The JSON objects of a streamed answer, up to `[DONE]`; events that hold anything else are left out.

        Raises `HttpError` for an event that holds an error, `StreamEndError` for a stream that ends before `[DONE]`,
        `ValueError` for an event without a name of its own that is no JSON.
        """
        reader = EventReader()
        async with contextlib.aclosing(self._parts("POST", path, body)) as parts:
            async for part in parts:
                for event in reader.feed(part):
                    if event.data.strip() == DONE:
                        return
                    document = _document(event)
                    if document is not None:
                        yield document
        last = reader.close()
        if last is None or last.data.strip() != DONE:
            raise StreamEndError("the stream ended without [DONE]")

    async def _parts(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncGenerator[bytes, None]:
        """The body of the answer as it comes. Raises `HttpError`."""
        reader, writer = await self._connect()
        try:
            writer.write(self._request(method, path, body))
            status, headers = await _head(reader)
            received = _body(reader, status, headers)
            if status != 200:
                message = error_message(b"".join([part async for part in received]))
                raise HttpError(f"status {status}: {message}", status)
            async for part in received:
                yield part
        except (asyncio.IncompleteReadError, OSError):
            raise HttpError("the connection broke off") from None
        except (ValueError, asyncio.LimitOverrunError):
            raise HttpError(f"{self.place}: the answer is not HTTP") from None
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        try:
            if self.uds is not None:
                return await asyncio.open_unix_connection(self.uds, limit=_LINE_LIMIT)
            return await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_LINE_LIMIT)
        except ConnectionRefusedError:
            message = f"{self.place}: connection refused; is a server running there?"
        except OSError as error:
            message = f"{self.place}: {error.strerror or error}"
        raise HttpError(message, unreachable=True)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        parts = urlsplit(self.url)
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1",
            f"host: {parts.netloc}",
            "connection: close",
            "accept-encoding: identity",
            f"content-length: {len(payload)}",
        ]
        if body is not None:
            lines.append("content-type: application/json")
        if self.api_key is not None:
            lines.append(f"authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + payload


def error_message(body: bytes) -> str:
    try:
        value = json.loads(body)
        error = value.get("error", value)
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:200].decode("utf-8", "replace")


def _document(event: ServerEvent) -> Any | None:
    """The JSON object of an event; None for one that is none. Raises `HttpError` for an error, else `ValueError`."""
    try:
        value = json.loads(event.data)
    except ValueError:
        if event.type == "message":
            raise
        value = None
    failed = isinstance(value, dict) and (value.get("error") is not None or value.get("object") == "error")
    if failed or event.type == "error":
        raise HttpError(error_message(event.data.encode()))
    return value if isinstance(value, dict) else None


async def _head(reader: asyncio.StreamReader) -> tuple[int, Message]:
    """Status and headers of the answer, whatever interim answers come before. Raises `ValueError` for no HTTP."""
    for _ in range(_INTERIM_LIMIT):
        protocol, status, *_rest = (await _line(reader)).split(None, 2)
        if not protocol.startswith("HTTP/1."):
            raise ValueError(protocol)
        headers = await _headers(reader)
        if not 100 <= int(status) < 200:
            return int(status), headers
    raise ValueError("there is no answer")


async def _headers(reader: asyncio.StreamReader) -> Message:
    lines = []
    while (line := await _line(reader)).rstrip("\r\n"):
        lines.append(line)
    return HeaderParser().parsestr("".join(lines))


async def _line(reader: asyncio.StreamReader) -> str:
    """The next line with its end. Raises `asyncio.IncompleteReadError` if there is none."""
    return (await reader.readuntil(b"\n")).decode("latin-1")


async def _body(reader: asyncio.StreamReader, status: int, headers: Message) -> AsyncIterator[bytes]:
    """The body, in chunks, by its length or to the end of the connection. Raises `ValueError` for codings."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ValueError(headers["content-encoding"])
    if status in (204, 304):
        return
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].strip().lower() != "chunked":
            raise ValueError(headers["transfer-encoding"])
        while size := int((await _line(reader)).split(";")[0], 16):
            yield await reader.readexactly(size)
            if (await _line(reader)).strip():
                raise ValueError("a chunk is longer than it says")
        await _headers(reader)
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"].split(",")[0]))
    else:
        while part := await reader.read(1 << 16):
            yield part
