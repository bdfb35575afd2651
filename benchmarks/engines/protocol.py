"""The line protocol between a driver and an engine process. Standard library only: engines run in interpreters of
their own.

The process gets its options as one JSON object in its only argument (`options` has them). The driver writes one
workload per line to its standard input and reads one result per line from its standard output. The first line is the
start: {"ready": seconds, "version": text}. A workload is

    {"kind": "decode", "sequences": n, "prompt": [ids], "tokens": t}     n sequences of t new tokens each
    {"kind": "prefill", "prompt": [ids]}                                 one sequence, one new token

and its result {"seconds": s, "tokens": counted}. End of input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

ATTEMPTS = 3

Run = Callable[[list[list[int]], int], None]
"""run(prompts, new tokens): complete every prompt with exactly that many tokens, greedily, without a prefix cache."""

Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""Do one workload and return its result."""


def options() -> dict[str, Any]:
    """model; dtype; max_tokens: the longest sequence; max_sequences: the most at once; bin: llama.cpp's programs."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def serve(load: Callable[[], tuple[Measure, str]], started: float) -> None:
    """Load an engine, report readiness and its version, then answer workloads until the input ends."""
    # Libraries, also in child processes, print to file descriptor 1; results must stay alone on their stream.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure, version = load()
    print(json.dumps({"ready": time.time() - started, "version": version}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=out, flush=True)


def timed(run: Run) -> Measure:
    """Measure an engine that completes prompts, after a first short run.

    Decode time is that of the whole batch without its prefill and first token.
    """
    run([[1, 2, 3, 4]], 4)

    def seconds(prompts: list[list[int]], tokens: int) -> float:
        start = time.perf_counter()
        run(prompts, tokens)
        return time.perf_counter() - start

    def measure(work: dict[str, Any]) -> dict[str, Any]:
        prompt = work["prompt"]
        if work["kind"] == "prefill":
            return {"seconds": seconds([prompt], 1), "tokens": len(prompt)}
        prompts = [[*prompt[:-1], prompt[-1] + i] for i in range(work["sequences"])]
        for _ in range(ATTEMPTS):
            first, whole = seconds(prompts, 1), seconds(prompts, work["tokens"])
            if whole > first:
                return {"seconds": whole - first, "tokens": (work["tokens"] - 1) * len(prompts)}
        raise SystemExit(f"{work['tokens']} tokens take no longer than one: the machine is too busy to measure so few")

    return measure
