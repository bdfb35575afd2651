"""The HTTP client of `inferir bench`: JSON documents, and completions that are streamed as server-sent events.

It uses one connection per request and only the standard library, so that it costs the machine little.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from inferir.commands.bench_metrics import Record
from inferir.ir.errors import InferirError

_LINE_LIMIT = 1 << 24


class HttpError(InferirError):
    """The server cannot be reached, or answers with an error or with something else than HTTP."""


@dataclass(frozen=True)
class Client:
    """A server at `url`, without a trailing slash."""

    url: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        except ValueError:
            valid = False
        if not valid:
            raise HttpError(f"--url: {self.url!r} is not an address such as http://127.0.0.1:8000")

    async def get(self, path: str) -> Any:
        """The JSON document at `path`. Raises `HttpError`."""
        body = b"".join([part async for part in self._parts("GET", path, None)])
        try:
            return json.loads(body)
        except ValueError:
            raise HttpError(f"{self.url}{path}: the answer is not JSON") from None

    async def complete(self, body: Mapping[str, Any]) -> Record:
        """Stream a completion; what goes wrong becomes the record's error."""
        record = Record(time.perf_counter())
        try:
            await self._stream(body, record)
            _check(record)
        except HttpError as error:
            record.error = str(error)
        except (ValueError, KeyError, TypeError, AttributeError):
            record.error = "an event of the stream is no part of a completion"
        record.ended = time.perf_counter()
        return record

    async def _stream(self, body: Mapping[str, Any], record: Record) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        buffer = b""
        async with contextlib.aclosing(self._parts("POST", "/v1/completions", {**body, **options})) as parts:
            async for part in parts:
                now = time.perf_counter()
                *lines, buffer = (buffer + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:") and _take(line[5:].strip(), record, now):
                        return
        raise HttpError("the stream ended without [DONE]")

    async def _parts(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncGenerator[bytes, None]:
        """The body of the answer as it comes. Raises `HttpError`."""
        parts = urlsplit(self.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_LINE_LIMIT)
        except ConnectionRefusedError:
            raise HttpError(f"{self.url}: connection refused; is a server running there?") from None
        except OSError as error:
            raise HttpError(f"{self.url}: {error.strerror or error}") from None
        try:
            writer.write(self._request(method, f"{parts.path.rstrip('/')}{path}", parts.netloc, body))
            status, headers = await _head(reader)
            received = _body(reader, headers)
            if status != 200:
                raise HttpError(f"status {status}: {_message(b''.join([part async for part in received]))}")
            async for part in received:
                yield part
        except (asyncio.IncompleteReadError, OSError):
            raise HttpError("the connection broke off") from None
        except (ValueError, asyncio.LimitOverrunError):
            raise HttpError(f"{self.url}: the answer is not HTTP") from None
        finally:
            writer.close()

    def _request(self, method: str, path: str, host: str, body: Mapping[str, Any] | None) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "connection: close", f"content-length: {len(payload)}"]
        if body is not None:
            lines.append("content-type: application/json")
        if self.api_key is not None:
            lines.append(f"authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + payload


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


def _message(body: bytes) -> str:
    """What an error's body says."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _take(data: bytes, record: Record, now: float) -> bool:
    """Note what an event brings; True at the end. Raises `HttpError` for an event with an error."""
    if data == b"[DONE]":
        return True
    event = json.loads(data)
    if "error" in event:
        raise HttpError(_message(data))
    for choice in event["choices"]:
        ids = choice.get("token_ids")
        count = len(ids) if ids is not None else int(bool(choice.get("text")))
        record.tokens.extend([now] * count)
    if event.get("usage"):
        record.prompt_tokens = event["usage"]["prompt_tokens"]
        record.usage = event["usage"]["completion_tokens"]
    return False


def _check(record: Record) -> None:
    """Compare what was streamed with the usage that the server counted. Raises `HttpError`."""
    if record.usage is None:
        raise HttpError("the answer has no usage")
    if record.usage != len(record.tokens):
        raise HttpError(f"usage counts {record.usage} tokens, but {len(record.tokens)} were streamed")
    if not record.tokens:
        raise HttpError("the answer has no token")
