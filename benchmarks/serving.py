"""Servers under the same load, taking turns: throughput, time to first token, time per output token, failures.

    python -m benchmarks.serving ARTIFACT --peers FILE [--rounds 5] [--concurrency 1,8,32] [--prefix 256]

All servers are started one after another; then every round gives each load to each server in turn while the others are
stopped. Loads are random prompts, and random prompts behind a beginning that all share, at each concurrency; prompts
differ from round to round, so a server finds no earlier prompt in its cache. The load generator is `vllm bench serve`
if a vLLM is configured, else `inferir bench serve` (`--client`). Medians over the rounds of each run's throughput and
means are compared. Writes `serving-NAME.json` with every number, prints tables and draws `serving-NAME.png`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import peers, report
from benchmarks.load_generator import METRICS, Client, Load, client, question
from benchmarks.offline import numbers
from benchmarks.processes import end_in_order, turn
from benchmarks.server_process import KINDS, Room, ServerProcess, served

Results = dict[str, dict[str, dict[str, list[float]]]]
"""Metric -> load -> server -> one number per round."""


def loads(given: argparse.Namespace) -> dict[str, Load]:
    """Loads by name."""
    found = {}
    for kind, prefix in {"random": 0, "shared prefix": given.prefix}.items():
        if kind != "random" and not prefix:
            continue
        for n in given.concurrency:
            prompts = max(given.least_prompts, given.prompts_per_client * n)
            found[f"{kind}, {n}"] = Load(
                concurrency=n, prompts=prompts, input=given.input, output=given.output, prefix=prefix
            )
    return found


def run(
    servers: Sequence[ServerProcess], work: dict[str, Load], generator: Client, rounds: int
) -> tuple[Results, dict[str, dict[str, int]]]:
    """The metrics, and load -> server -> failed requests of all rounds."""
    results: Results = {m: {name: {s.name: [] for s in servers} for name in work} for m in METRICS}
    failed = {name: {s.name: 0 for s in servers} for name in work}
    most = max(load.concurrency for load in work.values())
    for number, server in enumerate(servers):
        warm_up = Load(concurrency=most, prompts=most, input=32, output=8)
        with turn(server):
            generator.ask(question(warm_up, server.url, 10**6 + number))
    for number in range(rounds):
        first = number % len(servers)
        for place, (name, load) in enumerate(work.items()):
            for server in [*servers[first:], *servers[:first]]:
                with turn(server):
                    found = generator.ask(question(load, server.url, 1000 * number + place))
                for metric in METRICS:
                    if found[metric] is not None:
                        results[metric][name][server.name].append(found[metric])
                failed[name][server.name] += found["failed"]
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return results, failed


def show(results: Results, failed: dict[str, dict[str, int]], work: dict[str, Load], names: list[str]) -> str:
    """Tables: one per metric with ratios, then the failures."""
    parts = [
        report.aligned(report.comparison(f"{label} (median)", results[m], names, digits=1))
        for m, label in METRICS.items()
    ]
    lines = [["failed requests", *names]] + [[name, *(str(failed[name][n]) for n in names)] for name in work]
    return "\n\n".join([*parts, report.aligned(lines)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=numbers, default="1,8,32", help="requests under way at once")
    parser.add_argument("--input", type=int, default=128, help="tokens per prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens per answer")
    parser.add_argument("--prefix", type=int, default=256, help="shared tokens before each prompt; 0: no such load")
    parser.add_argument("--prompts-per-client", type=int, default=3, help="requests of a load per concurrent request")
    parser.add_argument("--least-prompts", type=int, default=5, help="requests of a load at least")
    parser.add_argument("--client", choices=("auto", "vllm", "inferir"), default="auto", help="load generator")
    parser.add_argument("--vocab-size", type=int, default=10000, help="inferir's client draws token ids below this")
    parser.add_argument("--dtype", default="bfloat16", help="element type of vLLM")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds that a server has to start")
    return parser.parse_args()


def main() -> None:
    end_in_order()
    given = parse()
    chosen = peers.given_peers(given, KINDS)
    name, work = peers.model_name(given), loads(given)
    # Prompts that are sent as text may have some tokens more than asked for.
    context = -(-(given.prefix + given.input + given.output + 128) // 256) * 256
    room = Room(slots=max(given.concurrency), context=context, dtype=given.dtype)
    logs = given.out / f"serving-{name}-logs"
    with (
        client(given.client, chosen, given.vocab_size, logs) as generator,
        served(chosen, room, logs, given.start_timeout) as servers,
    ):
        results, failed = run(servers, work, generator, given.rounds)
        record = {"model": name, "client": generator.version, "rounds": given.rounds, "slots": room.slots}
    names = [p.name for p in chosen]
    sizes = {load: vars(sizes) for load, sizes in work.items()}
    record |= {"loads": sizes, "failed": failed, "results": results}
    report.write(given.out / f"serving-{name}.json", record)
    panels = {f"{label}\n{load}": found for m, label in METRICS.items() for load, found in results[m].items()}
    title = f"{name}: {given.input} + {given.output} tokens, {given.prefix} shared; median and range"
    report.bars(panels, names, "", title, given.out / f"serving-{name}.png", columns=len(work))
    print(show(results, failed, work, names))


if __name__ == "__main__":
    main()
