"""llama.cpp, through its own `llama-batched-bench`, a process per workload.

That program decodes without sampling, HTTP or text, so it is the most that llama.cpp can do; it is told the same
numbers of sequences, prompt tokens and new tokens as every other engine. Loading is outside its times, and each
workload runs twice in it, of which the second counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.engines.protocol import Measure, options, serve

STARTED = time.time()
CELLS = 256  # the context of a sequence is a multiple of this


def bench(prompt: int, tokens: int, sequences: int) -> dict[str, Any]:
    """The program's record of one workload."""
    context = sequences * -(-(prompt + tokens) // CELLS) * CELLS
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(Path(options()["bin"]) / "llama-batched-bench"), "-m", options()["model"]]
    command += ["-c", str(context), "-t", threads, "-tb", threads, "--output-format", "jsonl"]
    command += ["-npp", f"{prompt},{prompt}", "-ntg", str(tokens), "-npl", str(sequences)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != 2:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}\n{done.stdout}")
    record: dict[str, Any] = json.loads(lines[1])
    return record


def measure(work: dict[str, Any]) -> dict[str, Any]:
    prompt = len(work["prompt"])
    if work["kind"] == "prefill":
        return {"seconds": bench(prompt, 1, 1)["t_pp"], "tokens": prompt}
    record = bench(prompt, work["tokens"], work["sequences"])
    return {"seconds": record["t_tg"], "tokens": work["tokens"] * work["sequences"]}


def load() -> tuple[Measure, str]:
    bench(4, 4, 1)
    command = [str(Path(options()["bin"]) / "llama-batched-bench"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    version = next((x for x in (said.stderr + said.stdout).splitlines() if x.startswith("version")), "version unknown")
    return measure, f"llama.cpp {version}"


if __name__ == "__main__":
    serve(load, STARTED)
