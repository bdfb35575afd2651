"""Completions as `inferir bench serve` sends them: streamed, with a time for every token."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from inferir.cli.bench_metrics import Record
from inferir.cli.http_client import Client, HttpError


async def complete(client: Client, body: Mapping[str, Any], timeout: float | None = None) -> Record:
    """Stream a completion; what goes wrong becomes the record's error. timeout: seconds for all of it."""
    record = Record(time.perf_counter())
    try:
        async with asyncio.timeout(timeout):
            await _stream(client, body, record)
        _check(record)
    except HttpError as error:
        record.error = str(error)
        record.unreachable = error.unreachable
    except TimeoutError:
        record.error = f"no complete answer within {timeout:g} s"
    except (ValueError, KeyError, TypeError, AttributeError):
        record.error = "an event of the stream is no part of a completion"
    record.ended = time.perf_counter()
    return record


async def _stream(client: Client, body: Mapping[str, Any], record: Record) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    async with contextlib.aclosing(client.events("/v1/completions", {**body, **options})) as events:
        async for event in events:
            _take(event, record, time.perf_counter())


def _take(event: Any, record: Record, now: float) -> None:
    """Note what an event brings."""
    for choice in event.get("choices") or ():
        ids = choice.get("token_ids")
        count = len(ids) if ids is not None else int(bool(choice.get("text")))
        record.tokens.extend([now] * count)
    if event.get("usage"):
        record.prompt_tokens = event["usage"]["prompt_tokens"]
        record.usage = event["usage"]["completion_tokens"]


def _check(record: Record) -> None:
    """Compare what was streamed with the usage that the server counted. Raises `HttpError`."""
    if record.usage is None:
        raise HttpError("the answer has no usage")
    if record.usage != len(record.tokens):
        raise HttpError(f"usage counts {record.usage} tokens, but {len(record.tokens)} were streamed")
    if not record.tokens:
        raise HttpError("the answer has no token")
