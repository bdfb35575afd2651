"""Offline throughput against other engines, each in a process of its own, taking turns.

    python -m benchmarks.offline ARTIFACT MODEL [--rounds 5] [--sequences 1,4,16] [--prefill 128,1024]

All engines are started one after another; then every round gives each workload to each engine in turn while the others
wait, so that a busy moment of the machine hits all alike. Medians over the rounds are compared. Writes `offline.json`,
prints a table and draws `offline.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class EngineProcess:
    """An engine behind the line protocol. `ready` is the seconds from its start to its first answer."""

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        command = [sys.executable, "-m", f"benchmarks.engines.{module}", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.ready = float(self._read()["ready"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the engine process ended (exit status {self.process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, work: dict[str, Any]) -> float:
        """Tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        return float(answer["tokens"] / answer["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def workloads(sequences: list[int], prefill: list[int], tokens: int) -> dict[str, dict[str, Any]]:
    """Workloads by name; prompts are the same for every engine."""
    rng = random.Random(0)
    ids = [rng.randrange(100, 10000) for _ in range(max([16, *prefill]))]
    found: dict[str, dict[str, Any]] = {
        f"decode {n}": {"kind": "decode", "sequences": n, "prompt": ids[:16], "tokens": tokens} for n in sequences
    }
    return found | {f"prefill {n}": {"kind": "prefill", "prompt": ids[:n]} for n in prefill}


def run(
    engines: list[EngineProcess], work: dict[str, dict[str, Any]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Tokens per second: workload -> engine -> one number per round (after a warm-up round)."""
    results: dict[str, dict[str, list[float]]] = {name: {e.name: [] for e in engines} for name in work}
    for turn in range(rounds + 1):
        for name, item in work.items():
            for engine in engines:
                rate = engine.measure(item)
                if turn:
                    results[name][engine.name].append(rate)
        print(f"round {turn} of {rounds}" if turn else "warm-up", file=sys.stderr)
    return results


def table(results: dict[str, dict[str, list[float]]], ready: dict[str, float]) -> str:
    """Medians, and each workload's ratio of the first engine to every other."""
    names = list(ready)
    lines = [["tokens/s (median)", *names, *(f"{names[0]} / {n}" for n in names[1:])]]
    for work, rates in results.items():
        medians = {n: statistics.median(rates[n]) for n in names}
        lines.append(
            [work, *(f"{medians[n]:.0f}" for n in names), *(f"{medians[names[0]] / medians[n]:.2f}" for n in names[1:])]
        )
    lines.append(["start, seconds", *(f"{ready[n]:.2f}" for n in names), *("" for _ in names[1:])])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def plot(results: dict[str, dict[str, list[float]]], names: list[str], path: Path) -> None:
    """Bars per workload with the range over the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(2.2 * len(results), 3.2))
    for axis, (work, rates) in zip(axes if len(results) > 1 else [axes], results.items(), strict=True):
        medians = [statistics.median(rates[n]) for n in names]
        low = [m - min(rates[n]) for m, n in zip(medians, names, strict=True)]
        high = [max(rates[n]) - m for m, n in zip(medians, names, strict=True)]
        axis.bar(names, medians, yerr=[low, high], capsize=3, color=[f"C{i}" for i in range(len(names))])
        axis.set_title(work, fontsize=9)
        axis.tick_params(axis="x", labelrotation=30, labelsize=8)
        axis.tick_params(axis="y", labelsize=8)
    figure.supylabel("tokens/s", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("model", help="the same model, as a folder or GGUF file, for the other engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per sequence")
    parser.add_argument("--sequences", default="1,4,16", help="batch sizes of the decode workloads")
    parser.add_argument("--prefill", default="128,1024", help="prompt lengths of the prefill workloads")
    parser.add_argument("--dtype", default="bfloat16", help="element type of the other engines")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    sequences, prefill = ([int(x) for x in text.split(",") if x] for text in (given.sequences, given.prefill))
    engines: list[EngineProcess] = []
    try:
        engines.append(EngineProcess("inferir", "inferir_engine", os.path.abspath(given.artifact)))
        engines.append(EngineProcess("hf eager", "hf_eager", os.path.abspath(given.model), given.dtype))
        results = run(engines, workloads(sequences, prefill, given.tokens), given.rounds)
    finally:
        for engine in engines:
            engine.close()
    ready = {e.name: e.ready for e in engines}
    given.out.mkdir(parents=True, exist_ok=True)
    record = {"machine": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0))}
    record |= {"dtype": given.dtype, "ready_seconds": ready, "tokens_per_second": results}
    (given.out / "offline.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot(results, [e.name for e in engines], given.out / "offline.png")
    print(table(results, ready))


if __name__ == "__main__":
    main()
