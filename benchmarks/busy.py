"""Decoding while another process keeps one core busy: how much of its speed an engine keeps.

    python -m benchmarks.busy ARTIFACT --peers FILE [--rounds 5] [--sequences 1,16]

The engine processes of `benchmarks.offline`. Each is measured undisturbed and, right after, beside a process that spins
on one core; the ratio is taken within the round. Writes `busy-NAME.json`, prints medians and draws `busy-NAME.png`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import peers, processes, report
from benchmarks.engine_process import EngineProcess, started
from benchmarks.offline import add_workload_arguments, engine_options, workloads
from inferir.ir.system.child import before_exec

KINDS = ("inferir", "llama_cpp", "openvino", "vllm")
STATES = ("undisturbed", "disturbed")
_SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


class Spinner:
    """A process that does nothing but occupy a core, the last of those that are usable."""

    def __init__(self) -> None:
        self.core = max(os.sched_getaffinity(0))
        command = [sys.executable, "-c", _SPIN, str(self.core)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=before_exec())
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.pause()

    def pause(self) -> None:
        processes.pause(self.process.pid)

    def resume(self) -> None:
        processes.resume(self.process.pid)


@contextlib.contextmanager
def spinner() -> Iterator[Spinner]:
    """A paused one, which ends with the block."""
    found = Spinner()
    try:
        yield found
    finally:
        processes.end(found.process)


def run(
    engines: Sequence[EngineProcess], work: dict[str, dict[str, Any]], rounds: int, other: Spinner
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Tokens per second: state -> workload -> engine -> one number per round (after a warm-up round)."""
    results: dict[str, dict[str, dict[str, list[float]]]] = {
        state: {name: {e.name: [] for e in engines} for name in work} for state in STATES
    }
    for number in range(rounds + 1):
        for name, item in work.items():
            for engine in engines:
                with processes.turn(engine):
                    alone = engine.measure(item)
                    with processes.turn(other):
                        beside = engine.measure(item)
                if number:
                    results["undisturbed"][name][engine.name].append(alone)
                    results["disturbed"][name][engine.name].append(beside)
        print(f"round {number} of {rounds}" if number else "warm-up", file=sys.stderr)
    return results


def main() -> None:
    processes.end_in_order()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_arguments(parser)
    add_workload_arguments(parser, "1,16")
    given = parser.parse_args()
    chosen = peers.given_peers(given, KINDS)
    name = peers.model_name(given)
    options = engine_options(given.sequences, [], given.tokens, given.dtype)
    with spinner() as other, started(chosen, options, given.out / f"busy-{name}-logs") as engines:
        results = run(engines, workloads(given.sequences, [], given.tokens), given.rounds, other)
        record = {"model": name, "rounds": given.rounds, "engines": {e.name: e.version for e in engines}}
    names = [p.name for p in chosen]
    alone, beside = (results[state] for state in STATES)
    kept = {w: {n: [b / a for a, b in zip(alone[w][n], beside[w][n], strict=True)] for n in names} for w in alone}
    report.write(given.out / f"busy-{name}.json", record | {"tokens_per_second": results, "kept": kept})
    panels = {f"{work}\n{state}": results[state][work] for work in alone for state in STATES}
    report.bars(panels, names, "tokens/s", f"{name}: one core busy", given.out / f"busy-{name}.png")
    lines = [["tokens/s (median)", *names]]
    for work in alone:
        lines += [[f"{work}, {s}", *(f"{statistics.median(results[s][work][n]):.0f}" for n in names)] for s in STATES]
        lines.append([f"{work}, kept", *(f"{statistics.median(kept[work][n]):.2f}" for n in names)])
    print(report.aligned(lines))


if __name__ == "__main__":
    main()
