"""The load of `inferir bench serve`: when which request is sent, and a time for every token that comes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferir.cli.bench_metrics import Record, random_prompts
from inferir.cli.bench_options import Load
from inferir.cli.http_client import Client, HttpError
from inferir.ir.errors import InferirError

if TYPE_CHECKING:
    from inferir.compile.compile_types import Progress

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
GIVE_UP = 5
"""Connections that fail one after the other until the server counts as gone, and nothing more is sent."""


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which requests are due; the first at once. The same arguments give the same times."""
    source = random.Random(f"arrivals {seed}")
    due = [0.0]
    while len(due) < count:
        due.append(due[-1] + (0.0 if math.isinf(rate) else source.expovariate(rate)))
    return due


def run_load(client: Client, model: str | None, load: Load, report: Progress | None = None) -> tuple[str, list[Record]]:
    """The model's name and a record per request, in the order of the prompts. report: told of every request's end.

    Raises `HttpError` if the server cannot be reached and `InferirError` if it lacks the model, the requests are too
    long for it, or none of them succeeds.
    """
    return asyncio.run(_run(client, model, load, report))


async def _run(client: Client, model: str | None, load: Load, report: Progress | None) -> tuple[str, list[Record]]:
    name, most = await client.find_model(model)
    tokens = load.prefix_len + load.input_len + load.output_len
    if most is not None and tokens > most:
        raise InferirError(
            f"requests of {tokens} tokens, prompt and answer, are too long for {name}, which takes {most}"
        )
    prompts = random_prompts(load.seed, load.num_prompts, load.input_len, load.vocab_size, load.prefix_len)
    seats: Any = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else contextlib.nullcontext()
    begin = asyncio.get_running_loop().time()
    lost = asyncio.Event()
    done = refused = 0

    async def one(prompt: list[int], due: float) -> Record:
        nonlocal done, refused
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(lost.wait(), max(0.0, begin + due - asyncio.get_running_loop().time()))
        async with seats:
            if lost.is_set():
                record = _unsent()
            else:
                record = await complete(client, _body(name, prompt, load), load.timeout)
            refused = refused + 1 if record.unreachable else 0
            if refused >= GIVE_UP:
                lost.set()
        done += 1
        if report is not None:
            report("requests", done, load.num_prompts)
        return record

    times = arrivals(load.num_prompts, load.rate, load.seed)
    records = await asyncio.gather(*(one(p, t) for p, t in zip(prompts, times, strict=True)))
    if all(r.error is not None for r in records):
        raise InferirError(f"all {len(records)} requests failed; the first: {records[0].error}")
    return name, records


def _body(model: str, prompt: list[int], load: Load) -> dict[str, Any]:
    """A request, with every parameter that a server might otherwise take from the model."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": load.output_len,
        "temperature": load.temperature,
        "repetition_penalty": 1.0,
        "ignore_eos": load.ignore_eos,
    }


def _unsent() -> Record:
    now = time.perf_counter()
    return Record(now, ended=now, error="not sent, since the server is gone", unreachable=True)


async def complete(client: Client, body: Mapping[str, Any], timeout: float | None = None) -> Record:
    """Stream a completion; what goes wrong becomes the record's error. timeout: seconds for all of it."""
    record = Record(time.perf_counter())
    try:
        events = client.events("/v1/completions", {**body, **_STREAMED})
        async with asyncio.timeout(timeout), contextlib.aclosing(events):
            async for event in events:
                _take(event, record, time.perf_counter())
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


def _take(event: Any, record: Record, now: float) -> None:
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
