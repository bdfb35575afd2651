"""Offline throughput against other engines, each in a process of its own, taking turns.

    python -m benchmarks.offline ARTIFACT [MODEL | --peers FILE] [--rounds 5] [--sequences 1,4] [--prefill 128]

All engines are started one after another; then every round gives each workload to each engine in turn while the others
are stopped, so that a busy moment of the machine hits all alike and no waiting engine spins. The engine that goes first
changes from round to round, and a warm-up round does not count. Medians over the rounds are compared. Writes
`offline-NAME.json` with every number, prints a table and draws `offline-NAME.png`. MODEL is the model for transformers;
`--peers` names more engines (`benchmarks/README.md`).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import peers, report
from benchmarks.engine_process import EngineProcess, started
from benchmarks.processes import end_in_order, turn

PROMPT = 16  # tokens in the prompt of a decode workload


def workloads(sequences: Sequence[int], prefill: Sequence[int], tokens: int) -> dict[str, dict[str, Any]]:
    """Workloads by name; prompts are the same for every engine."""
    rng = random.Random(0)
    ids = [rng.randrange(100, 10000) for _ in range(max([PROMPT, *prefill]))]
    found: dict[str, dict[str, Any]] = {
        f"decode {n}": {"kind": "decode", "sequences": n, "prompt": ids[:PROMPT], "tokens": tokens} for n in sequences
    }
    return found | {f"prefill {n}": {"kind": "prefill", "prompt": ids[:n]} for n in prefill}


def engine_options(sequences: Sequence[int], prefill: Sequence[int], tokens: int, dtype: str) -> dict[str, Any]:
    """What an engine must have room for."""
    longest = max([PROMPT + tokens, *(n + 1 for n in prefill)])
    return {"dtype": dtype, "max_tokens": max(2048, -(-longest // 64) * 64), "max_sequences": max([1, *sequences])}


def run(
    engines: Sequence[EngineProcess], work: dict[str, dict[str, Any]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Tokens per second: workload -> engine -> one number per round (after a warm-up round)."""
    results: dict[str, dict[str, list[float]]] = {name: {e.name: [] for e in engines} for name in work}
    for number in range(rounds + 1):
        first = number % len(engines)
        for name, item in work.items():
            for engine in [*engines[first:], *engines[:first]]:
                with turn(engine):
                    rate = engine.measure(item)
                if number:
                    results[name][engine.name].append(rate)
        print(f"round {number} of {rounds}" if number else "warm-up", file=sys.stderr)
    return results


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def add_workload_arguments(parser: argparse.ArgumentParser, sequences: str) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per sequence")
    parser.add_argument("--sequences", type=numbers, default=sequences, help="batch sizes of the decode workloads")
    parser.add_argument("--dtype", default="bfloat16", help="element type of the other engines")


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_arguments(parser)
    parser.add_argument("model", nargs="?", help="the same model for transformers: a folder or GGUF file")
    add_workload_arguments(parser, "1,4,16,64")
    parser.add_argument("--prefill", type=numbers, default="128,1024", help="prompt lengths of the prefill workloads")
    given = parser.parse_args()
    chosen = peers.given_peers(given, peers.KINDS, given.model)
    options = engine_options(given.sequences, given.prefill, given.tokens, given.dtype)
    name = peers.model_name(given)
    with started(chosen, options, given.out / f"offline-{name}-logs") as engines:
        results = run(engines, workloads(given.sequences, given.prefill, given.tokens), given.rounds)
    names = [e.name for e in engines]
    record = {"model": name, "dtype": given.dtype, "rounds": given.rounds, "new_tokens": given.tokens}
    record |= {"engines": {e.name: e.version for e in engines}, "ready_seconds": {e.name: e.ready for e in engines}}
    report.write(given.out / f"offline-{name}.json", record | {"tokens_per_second": results})
    report.bars(
        results, names, "tokens/s", f"{name}, median and range of {given.rounds}", given.out / f"offline-{name}.png"
    )
    lines = report.comparison("tokens/s (median)", results, names)
    lines.append(["start, seconds", *(f"{e.ready:.2f}" for e in engines), *("" for _ in names[1:])])
    print(report.aligned(lines))


if __name__ == "__main__":
    main()
