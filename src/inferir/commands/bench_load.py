"""The load of `inferir bench serve`: when which request is sent, and what comes of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferir.commands.bench_client import Client, HttpError
from inferir.commands.bench_metrics import Record, random_prompts
from inferir.ir.errors import InferirError


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send. `rate`: requests per second on average, with exponential gaps; infinite: all at once."""

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


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which requests are due; the first at once. The same arguments give the same times."""
    source = random.Random(f"arrivals {seed}")
    due = [0.0]
    while len(due) < count:
        due.append(due[-1] + (0.0 if math.isinf(rate) else source.expovariate(rate)))
    return due


def run_load(client: Client, model: str | None, load: Load) -> tuple[str, list[Record]]:
    """The model's name and a record per request, in the order of the prompts.

    Raises `HttpError` if the server cannot be reached and `InferirError` if it lacks the model, the requests are too
    long for it, or none of them succeeds.
    """
    return asyncio.run(_run(client, model, load))


async def _run(client: Client, model: str | None, load: Load) -> tuple[str, list[Record]]:
    name = await _model(client, model, load.prefix_len + load.input_len + load.output_len)
    prompts = random_prompts(load.seed, load.num_prompts, load.input_len, load.vocab_size, load.prefix_len)
    seats: Any = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else contextlib.nullcontext()
    begin = asyncio.get_running_loop().time()

    async def one(prompt: list[int], due: float) -> Record:
        await asyncio.sleep(begin + due - asyncio.get_running_loop().time())
        body = {
            "model": name,
            "prompt": prompt,
            "max_tokens": load.output_len,
            "temperature": load.temperature,
            "ignore_eos": load.ignore_eos,
        }
        async with seats:
            return await client.complete(body)

    times = arrivals(load.num_prompts, load.rate, load.seed)
    records = await asyncio.gather(*(one(p, t) for p, t in zip(prompts, times, strict=True)))
    if all(r.error is not None for r in records):
        raise InferirError(f"all {len(records)} requests failed; the first: {records[0].error}")
    return name, records


async def _model(client: Client, wanted: str | None, tokens: int) -> str:
    """The name of the wanted model, or of the server's first, which must take `tokens` per request."""
    answer = await client.get("/v1/models")
    try:
        served: Sequence[Any] = [(m["id"], m.get("max_model_len")) for m in answer["data"]]
    except (KeyError, TypeError, AttributeError):
        raise HttpError(f"{client.url}/v1/models: the answer is no list of models") from None
    names = ", ".join(name for name, _ in served)
    found = next(((n, most) for n, most in served if wanted in (None, n)), None)
    if found is None:
        raise InferirError(f"{client.url} does not serve {wanted!r}; it serves {names or 'nothing'}")
    name, most = found
    if most is not None and tokens > most:
        raise InferirError(
            f"requests of {tokens} tokens, prompt and answer, are too long for {name}, which takes {most}"
        )
    return str(name)
