"""Answers of a running server, for `inferir chat --url`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from inferir.cli.http_client import Client, HttpError, StreamEndError
from inferir.cli.streaming import Answer, Message, on_interrupt
from inferir.ir.errors import RequestError


def find_model(client: Client, wanted: str | None) -> tuple[str, int | None]:
    """Name and context length of the wanted model, or of the server's first.

    From a server without a list of models a given name is taken as it is. Raises `HttpError` if the server cannot be
    reached, wants another key, or does not serve the model.
    """
    try:
        return asyncio.run(client.find_model(wanted))
    except HttpError as error:
        if error.status == 404 and wanted is not None:
            return wanted, None
        raise _explained(client, error) from None


def remote_answer(
    client: Client, fields: Mapping[str, Any], messages: Sequence[Message], write: Callable[[str], None]
) -> Answer:
    """Have the server answer `messages`, passing the answer to `write` as it comes; Ctrl-C ends the answer.

    fields: what the request says besides. Raises `RequestError` if the server refuses it, as one that does not fit the
    context, and `HttpError` for any other failure.
    """
    reply = _Reply(write)
    try:
        whole = _run(reply, reply.read(client, {**fields, "messages": messages}))
    except HttpError as error:
        if error.status == 400:
            raise RequestError(str(error).removeprefix("status 400: "), "messages") from None
        raise _explained(client, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise HttpError(f"{client.place}: an event of the stream is no part of a chat") from None
    return reply.answer(interrupted=not whole)


class _Reply:
    """One answer as it comes, until it is `stopped`."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.stopped = False
        self._write = write
        self._start = time.perf_counter()
        self._first = 0.0
        self._parts: list[str] = []
        self._reason: str | None = None
        self._usage: dict[str, int] = {}

    async def read(self, client: Client, fields: dict[str, Any]) -> None:
        body = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        async with contextlib.aclosing(client.events("/v1/chat/completions", body)) as events:
            try:
                async for event in events:
                    self._take(event)
                    if self.stopped:
                        return
            except StreamEndError:
                if self._reason is None:
                    raise

    def _take(self, event: Mapping[str, Any]) -> None:
        """What an event brings; one of another kind brings nothing, nor does a key that is null or missing."""
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            self._reason = choice.get("finish_reason") or self._reason
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("refusal")
            if isinstance(text, str) and text:
                self._first = self._first or time.perf_counter() - self._start
                self._parts.append(text)
                self._write(text)

    def answer(self, *, interrupted: bool) -> Answer:
        """What came. A server that was interrupted has not counted the tokens: then pieces of text are counted."""
        tokens = self._usage.get("completion_tokens") or len(self._parts)
        total = time.perf_counter() - self._start
        reason = "abort" if interrupted else self._reason or "stop"
        return Answer("".join(self._parts), self._usage.get("prompt_tokens") or 0, tokens, self._first, total, reason)


def _run(reply: _Reply, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, which reads `reply`, to its end; False if Ctrl-C ended it."""

    async def guarded() -> bool:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            reply.stopped = True  # for pieces that are here already
            loop.call_soon_threadsafe(task.cancel)  # for waiting

        with on_interrupt(stop):
            try:
                await task
            except asyncio.CancelledError:
                return False
        return not reply.stopped

    return asyncio.run(guarded())


def _explained(client: Client, error: HttpError) -> HttpError:
    """The error with what to do about it."""
    hints = {
        401: "; give the server's key with --api-key",
        403: "; give the server's key with --api-key",
        404: "; is this a server of the OpenAI API, and does it have the model?",
    }
    where = "" if error.status is None or error.unreachable else f"{client.place}: "
    return HttpError(f"{where}{error}{hints.get(error.status or 0, '')}", error.status, unreachable=error.unreachable)
