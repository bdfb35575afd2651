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
from typing import Any
from urllib.parse import urlsplit

from inferir.ir.errors import InferirError

_LINE_LIMIT = 1 << 24


class HttpError(InferirError):
    """The server cannot be reached, or answers with an error or with something else than HTTP.

    status: that of the answer, if there was one. unreachable: whether no connection could be made.
    """

    def __init__(self, message: str, status: int | None = None, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.unreachable = unreachable


@dataclass(frozen=True)
class Client:
    """A server at `url`, with or without the path /v1; with `uds`, at that Unix socket, and `url` only names the host.

    Raises `HttpError` for a `url` that is none.
    """

    url: str
    api_key: str | None = None
    uds: str | None = None

    def __post_init__(self) -> None:
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

    async def models(self) -> list[tuple[str, int | None]]:
        """Names of the served models, each with its context length if the server tells it. Raises `HttpError`."""
        answer = await self.get("/v1/models")
        try:
            return [(str(m["id"]), m.get("max_model_len")) for m in answer["data"]]
        except (KeyError, TypeError, AttributeError):
            raise HttpError(f"{self.place}/v1/models: the answer is no list of models") from None

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """The JSON documents of a streamed answer, up to `[DONE]`.

        Raises `HttpError` for an event that holds an error and for a stream that breaks off, `ValueError` for an event
        that is no JSON.
        """
        buffer = b""
        async with contextlib.aclosing(self._parts("POST", path, body)) as parts:
            async for part in parts:
                *lines, buffer = (buffer + part).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    event = json.loads(data)
                    if isinstance(event, dict) and event.get("error") is not None:
                        raise HttpError(error_message(data))
                    yield event
        raise HttpError("the stream ended without [DONE]")

    async def _parts(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncGenerator[bytes, None]:
        """The body of the answer as it comes. Raises `HttpError`."""
        reader, writer = await self._connect()
        try:
            writer.write(self._request(method, path, body))
            status, headers = await _head(reader)
            received = _body(reader, headers)
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
            f"content-length: {len(payload)}",
        ]
        if body is not None:
            lines.append("content-type: application/json")
        if self.api_key is not None:
            lines.append(f"authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + payload


def error_message(body: bytes) -> str:
    """What an error's body says."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers. Raises `ValueError` for what is no HTTP."""
    protocol, status, *_ = (await reader.readline()).decode("latin-1").split(" ", 2)
    if not protocol.startswith("HTTP/1."):
        raise ValueError(protocol)
    headers = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body, in chunks, by its length or to the end of the connection."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part
