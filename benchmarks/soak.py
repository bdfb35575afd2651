"""Many mixed requests through a small cache: every answer must be that of the request alone, and memory must stay.

    python -m benchmarks.soak ARTIFACT [--requests 2000] [--seed 0] [--together 24] [--kv-blocks 0]

Requests differ in length, sampling, priority and salt; many share beginnings, some are invalid, some are closed early.
They run together over a KV cache for little more than two sequences of full length, so that requests are preempted,
with the prefix cache and the priority policy on. Each answer is compared with that of a second engine that computes
one request at a time without prefix cache. Prints a JSON object; the exit status is 1 if an answer differs, a block is
not given back, or memory grew by more than 50 MB after the first quarter.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferir import LLM, SamplingParams
from inferir.ir.errors import RequestError

GROWTH_LIMIT = 50 * 2**20
SOMETIMES = {"logprobs": 3, "top_k": 20, "top_p": 0.8, "presence_penalty": 0.5, "min_tokens": 1, "stop": ["e"]}
"""Parameters that a request has with a probability of 15 % each."""


@dataclass(frozen=True)
class Spec:
    """One request. close_after: pieces of text after which its stream is closed; None to read all of it."""

    prompt: list[int]
    params: dict[str, Any]
    priority: int
    salt: str | None
    close_after: int | None


@dataclass
class Report:
    """What happened. growth: bytes of memory that the process gained after the first quarter of the requests."""

    requests: int = 0
    finished: int = 0
    closed: int = 0
    refused: int = 0
    tokens: int = 0
    different: list[int] = field(default_factory=list)
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    blocks_left: int = 0
    growth: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not self.different and self.blocks_left == 0 and self.growth <= GROWTH_LIMIT


def make_specs(count: int, seed: int, vocab: int, longest: int) -> list[Spec]:
    """Reproducible requests for a model with `vocab` ids and room for `longest` tokens."""
    rng = random.Random(seed)
    shared = [[rng.randrange(vocab) for _ in range(longest)] for _ in range(4)]
    specs = []
    for index in range(count):
        common = rng.choice(shared)[: rng.choice((0, 0, longest // 4, longest // 2, 2 * longest // 3))]
        own = [rng.randrange(vocab) for _ in range(rng.randint(1, longest // 4))]
        params: dict[str, Any] = {
            "max_tokens": rng.choice((1, 5, 20, longest)),
            "temperature": rng.choice((0.0, 0.0, 0.7, 1.3)),
            "seed": index,
            "ignore_eos": rng.random() < 0.5,
        }
        params |= {name: value for name, value in SOMETIMES.items() if rng.random() < 0.15}
        if rng.random() < 0.05:
            params["prompt_logprobs"] = 1
        prompt = common + own
        if rng.random() < 0.05:
            prompt = rng.choice(([], [vocab], [*prompt, -1], [0] * (longest + 1)))
        specs.append(
            Spec(
                prompt,
                params,
                rng.randrange(3),
                rng.choice((None, None, "a", "b")),
                rng.randint(1, 8) if rng.random() < 0.15 else None,
            )
        )
    return specs


def anonymous_bytes() -> int:
    """Memory of this process that no file backs, swapped out or not."""
    status = Path("/proc/self/status").read_text()
    sizes = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(sizes[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def soak(artifact: str | os.PathLike[str], *, requests: int, seed: int, together: int, kv_blocks: int = 0) -> Report:
    """Run it. kv_blocks: blocks of the small cache; 0 for those of two sequences and a half."""
    report = Report(requests=requests)
    with LLM(artifact, threads=1, enable_prefix_caching=False) as alone:
        limits, memory = alone.manifest.limits, alone.manifest.memory
        specs = make_specs(requests, seed, alone.manifest.model.vocab_size, limits.max_model_len)
        expected = [_alone(alone, spec) for spec in specs]
    blocks = kv_blocks or 5 * limits.max_model_len // limits.block_size // 2
    started = time.monotonic()
    with LLM(
        artifact, threads=1, kv_cache_memory=(blocks + 1) * memory.kv_block_bytes, scheduling_policy="priority"
    ) as llm:
        streams: dict[int, Any] = {}
        pieces: dict[int, int] = {}
        warm = 0
        for index, spec in enumerate(specs):
            if index == requests // 4:
                warm = anonymous_bytes()
            try:
                streams[index] = llm.stream(
                    spec.prompt, SamplingParams(**spec.params), priority=spec.priority, cache_salt=spec.salt
                )
            except RequestError:
                report.refused += 1
                if expected[index] is not None:
                    report.different.append(index)
            while len(streams) >= together:
                _turn(streams, pieces, specs, expected, report)
        while streams:
            _turn(streams, pieces, specs, expected, report)
        stats = llm.stats()
        report.preemptions, report.blocks_left = stats.preemptions, stats.kv_blocks_used
        report.prefix_queries, report.prefix_hits = stats.prefix_queries, stats.prefix_hits
        report.growth = max(0, anonymous_bytes() - warm)
    report.seconds = round(time.monotonic() - started, 2)
    return report


def _alone(llm: LLM, spec: Spec) -> Any:
    """What the request gives by itself; None if it is refused."""
    try:
        (output,) = llm.generate([spec.prompt], SamplingParams(**spec.params))
    except RequestError:
        return None
    return output.outputs, output.prompt_logprobs


def _turn(
    streams: dict[int, Any], pieces: dict[int, int], specs: list[Spec], expected: list[Any], report: Report
) -> None:
    """Take one piece of text of every stream; close those whose time has come and check those that ended."""
    for index, stream in list(streams.items()):
        try:
            next(stream)
            pieces[index] = pieces.get(index, 0) + 1
            if pieces[index] != specs[index].close_after:
                continue
            stream.close()
            report.closed += 1
            closed = True
        except StopIteration:
            report.finished += 1
            closed = False
        output = stream.output
        report.tokens += len(output.token_ids)
        if not _equal(output, expected[index], closed):
            report.different.append(index)
        del streams[index]
        pieces.pop(index, None)


def _equal(output: Any, expected: Any, closed: bool) -> bool:
    """Whether an answer is the expected one, or the beginning of it if its stream was closed."""
    if expected is None:
        return False
    (whole,), prompt_logprobs = expected
    answer = output.outputs[0]
    if closed:
        tokens = whole.token_ids[: len(answer.token_ids)]
        return bool(answer.token_ids == tokens and whole.text.startswith(answer.text))
    return bool(answer == whole and output.prompt_logprobs == prompt_logprobs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak test of the engine.")
    parser.add_argument("artifact")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=24)
    parser.add_argument("--kv-blocks", type=int, default=0)
    options = parser.parse_args()
    report = soak(
        options.artifact,
        requests=options.requests,
        seed=options.seed,
        together=options.together,
        kv_blocks=options.kv_blocks,
    )
    print(json.dumps(vars(report)))
    return 0 if report.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
