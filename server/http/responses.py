"""Answers: JSON, and server-sent events that notice when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from inferir.server.http.http_errors import ApiError

T = TypeVar("T")
log = logging.getLogger("inferir.server")
encode = msgspec.json.encode


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


def warn(headers: dict[str, str], text: str, path: str = "") -> None:
    """Log a warning about a request, of the route `path`, and add it to the headers of the answer."""
    log.warning("%s", f"{path}: {text}" if path else text)
    shown = text.encode("ascii", "backslashreplace").decode()
    before = headers.get("x-inferir-warning")
    headers["x-inferir-warning"] = f"{before}; {shown}" if before else shown


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, "application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body, error.status, error.headers)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client leaves. Raises `ClientGoneError` then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for t in (task, gone):
            if not t.done():
                t.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await t


async def answered(
    request: Request,
    whole: Callable[[], Awaitable[Any]],
    events: AsyncIterator[Any] | None,
    close: Callable[[], Awaitable[None]],
    headers: Mapping[str, str],
) -> Response:
    """`events` as they come, or without them the document `whole`; `close` is called at the end of either."""
    if events is not None:
        return EventStream(events, close, headers)
    try:
        return json_response(await while_connected(request, whole()), headers=headers)
    finally:
        await close()


class EventStream(StreamingResponse):
    """Server-sent events: a JSON document per event, then `[DONE]`.

    An `ApiError` of `events`, once the headers are sent, becomes an event with an error, and no `[DONE]` follows.
    `close` is called at the end, however it comes.
    """

    def __init__(
        self, events: AsyncIterator[Any], close: Callable[[], Awaitable[None]], headers: Mapping[str, str]
    ) -> None:
        kept = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        super().__init__(_event_bytes(events), headers=kept, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


async def _event_bytes(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    last = b"[DONE]"
    try:
        async for event in events:
            yield b"data: " + encode(event) + b"\n\n"
    except ApiError as error:
        last = encode(error.body)
    except Exception:
        log.exception("a stream failed")
        last = encode(ApiError(500, "internal error").body)
    yield b"data: " + last + b"\n\n"
