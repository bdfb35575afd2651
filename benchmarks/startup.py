"""How long servers take from the start of their process until they are ready, and until a request is answered.

    python -m benchmarks.startup ARTIFACT --peers FILE [--repetitions 5]

Fresh processes, one at a time, taking turns; the first start of each does not count, so files are in the page cache.
Ready is the first success of the server's own health address (asked every 5 ms); the answer is one token, asked for as
soon as the server is ready. Writes `startup-NAME.json`, prints medians and draws `startup-NAME.png`.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import peers, report
from benchmarks.processes import end_in_order
from benchmarks.server_process import KINDS, Room, ServerProcess


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_arguments(parser)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", help="element type of vLLM")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a server has to start")
    given = parser.parse_args()
    chosen = peers.given_peers(given, KINDS)
    name = peers.model_name(given)
    logs = given.out / f"startup-{name}-logs"
    logs.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[float]]] = {w: {p.name: [] for p in chosen} for w in ("ready", "first answer")}
    for number in range(given.repetitions + 1):
        for peer in chosen:
            server = ServerProcess(peer, Room(dtype=given.dtype), logs / f"{peer.name}.log")
            try:
                ready, answered = server.wait_ready(given.timeout), server.answer()
            finally:
                server.close()
            if number:
                results["ready"][peer.name].append(ready)
                results["first answer"][peer.name].append(answered)
        print(f"start {number} of {given.repetitions}" if number else "warm-up", file=sys.stderr)
    names = [p.name for p in chosen]
    report.write(given.out / f"startup-{name}.json", {"model": name, "seconds": results})
    report.bars(results, names, "seconds", f"{name}: start of a server", given.out / f"startup-{name}.png")
    print(report.aligned(report.comparison("seconds (median)", results, names, digits=2)))


if __name__ == "__main__":
    main()
