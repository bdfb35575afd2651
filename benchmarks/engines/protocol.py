"""The line protocol between the driver and an engine process.

The driver writes one workload per line to the process's standard input and reads one result per line from its standard
output. The first line a process writes is its start: {"ready": seconds}. A workload is

    {"kind": "decode", "sequences": n, "prompt": [ids], "tokens": t}     n sequences of t new tokens each
    {"kind": "prefill", "prompt": [ids]}                                 one sequence, one new token

and its result {"seconds": s, "tokens": counted}. End of input ends the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[list[list[int]], int], None]
"""run(prompts, new tokens): complete every prompt with exactly that many tokens, greedily."""


def serve(load: Callable[[], Run], started: float) -> None:
    """Load an engine, report readiness, then answer workloads until the input ends."""
    out = sys.stdout
    sys.stdout = sys.stderr  # libraries may print; results must stay alone on their stream
    run = load()
    run([[1, 2, 3, 4]], 4)
    print(json.dumps({"ready": time.time() - started}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(run, json.loads(line))), file=out, flush=True)


def measure(run: Run, work: dict[str, Any]) -> dict[str, float]:
    """Time one workload. Decode time is that of the whole batch without its prefill and first token."""
    prompt = work["prompt"]
    if work["kind"] == "prefill":
        start = time.perf_counter()
        run([prompt], 1)
        return {"seconds": time.perf_counter() - start, "tokens": len(prompt)}
    prompts = [[*prompt[:-1], prompt[-1] + i] for i in range(work["sequences"])]
    start = time.perf_counter()
    run(prompts, 1)
    first = time.perf_counter() - start
    start = time.perf_counter()
    run(prompts, work["tokens"])
    return {
        "seconds": time.perf_counter() - start - first,
        "tokens": (work["tokens"] - 1) * work["sequences"],
    }
