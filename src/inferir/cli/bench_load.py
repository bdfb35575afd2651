"""The load of `inferir bench serve`: when which request is sent, and what comes of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from dataclasses import dataclass
from typing import Any

from inferir.cli.bench_client import complete
from inferir.cli.bench_metrics import Record, random_prompts
from inferir.cli.http_client import Client
from inferir.cli.progress import Report
from inferir.ir.errors import InferirError

GIVE_UP = 5
"""Connections that fail one after the other until the server counts as gone, and nothing more is sent."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send. `rate`: requests per second on average, with exponential gaps; infinite: all at once. `timeout`:
    seconds that a request may take.
    """

    num_prompts: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    vocab_size: int = 256
    max_concurrency: int | None = None
    rate: float = math.inf
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int = 0
    timeout: float = 300.0


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which requests are due; the first at once. The same arguments give the same times."""
    source = random.Random(f"arrivals {seed}")
    due = [0.0]
    while len(due) < count:
        due.append(due[-1] + (0.0 if math.isinf(rate) else source.expovariate(rate)))
    return due


def run_load(client: Client, model: str | None, load: Load, report: Report | None = None) -> tuple[str, list[Record]]:
    """The model's name and a record per request, in the order of the prompts. report: told of every request's end.

    Raises `HttpError` if the server cannot be reached and `InferirError` if it lacks the model, the requests are too
    long for it, or none of them succeeds.
    """
    return asyncio.run(_run(client, model, load, report))


async def _run(client: Client, model: str | None, load: Load, report: Report | None) -> tuple[str, list[Record]]:
    name = await _model(client, model, load.prefix_len + load.input_len + load.output_len)
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


async def _model(client: Client, wanted: str | None, tokens: int) -> str:
    """The name of the wanted model, or of the server's first, which must take `tokens` per request."""
    served = await client.models()
    names = ", ".join(name for name, _ in served)
    found = next(((n, most) for n, most in served if wanted in (None, n)), None)
    if found is None:
        raise InferirError(f"{client.place} does not serve {wanted!r}; it serves {names or 'nothing'}")
    name, most = found
    if most is not None and tokens > most:
        raise InferirError(
            f"requests of {tokens} tokens, prompt and answer, are too long for {name}, which takes {most}"
        )
    return name
