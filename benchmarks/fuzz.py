"""Thousands of malformed and hostile requests: the server must refuse them, or answer, and go on as before.

    python -m benchmarks.fuzz ARTIFACT [--bodies 5000] [--seed 0] [--together 4] [--schemathesis COMMAND] [--json]

No answer may be a 5xx or take more than 10 s, what is malformed must be a 4xx with a message, and a stream must end as
it should. All the while `/health` must be 200 and a greedy reference stream the same; afterwards the engine must be the
same process, idle, and hardly larger than after the first half. With `--schemathesis`, that tool then does the same
with requests that it derives from `/openapi.json`. The exit status is 1 if any of it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fuzz_bodies import COMPLETIONS, Case, cases, field_types
from benchmarks.served import Served, table
from inferir.ir.contract.artifact import read_manifest

PARTS = 4
SECONDS = 10.0
CONTEXT = 96  # so that an answer without a limit of its own is short, too
GROWTH_LIMIT = 48 * 2**20  # compiled grammars are kept, within limits
REFERENCE = {"prompt": "Tell me about the sea.", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}


@dataclass
class Report:
    """What happened. statuses: how often which status came, by kind of body."""

    bodies: int
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    malformed: int = 0
    health_checks: int = 0
    references: int = 0
    slowest: float = 0.0
    slowest_kind: str = ""
    last_pause: float = 0.0
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    seconds: float = 0.0
    schemathesis: str | None = None

    def check(self, case: Case, response: httpx.Response, started: float) -> None:
        """Count an answer and say what is wrong with it."""
        status = response.status_code
        self.statuses.setdefault(case.kind, Counter())[status] += 1
        self.malformed += case.malformed
        seconds = time.monotonic() - started
        if seconds > self.slowest and self.last_pause < started - 1:
            self.slowest, self.slowest_kind = round(seconds, 2), case.kind
        text = response.text
        if status >= 500 or status < 200:
            self.problem(case, f"status {status}: {text[:300]}")
        elif status >= 400:
            try:
                good = bool(json.loads(text)["error"]["message"])
            except (ValueError, KeyError, TypeError):
                good = False
            if not good:
                self.problem(case, f"status {status} without a message: {text[:300]}")
        elif case.malformed:
            self.problem(case, f"malformed, but answered with {status}: {text[:300]}")
        elif response.headers["content-type"].startswith("text/event-stream") and not text.endswith("data: [DONE]\n\n"):
            self.problem(case, f"a stream ended with {text[-300:]}")

    def problem(self, case: Case, text: str) -> None:
        self.problems.append(f"{case.kind}: {text}: {case.path} {case.content[:300]!r}")


async def fuzz(server: Served, work: Iterator[Case], together: int, report: Report) -> None:
    """Send all cases, and look after the server meanwhile. Those during which the engine was paused are sent again."""
    limits = httpx.Limits(max_connections=together + 2)
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS, limits=limits) as http:

        async def send() -> None:
            for case in work:
                while not await _send(http, case, report):
                    pass

        watching = [
            asyncio.create_task(_watch_health(http, server, report)),
            asyncio.create_task(_watch_answers(http, report)),
        ]
        await asyncio.gather(*(send() for _ in range(together)))
        for task in watching:
            task.cancel()
        results = await asyncio.gather(*watching, return_exceptions=True)
        report.problems += [f"watching failed: {r!r}" for r in results if not isinstance(r, asyncio.CancelledError)]


async def _send(http: httpx.AsyncClient, case: Case, report: Report) -> bool:
    """Send one and judge its answer; False if that must be done again."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(SECONDS):
            response = await http.post(case.path, content=case.content, headers=dict(case.headers))
        report.check(case, response, started)
    except (httpx.HTTPError, TimeoutError) as error:
        if report.last_pause > started - 1:
            return False
        report.problem(case, f"no answer in {time.monotonic() - started:.1f} s: {error!r}")
    return True


async def _watch_health(http: httpx.AsyncClient, server: Served, report: Report) -> None:
    while True:
        if server.engine_paused():
            report.last_pause = time.monotonic()
        response = await http.get("/health")
        report.health_checks += 1
        if response.status_code != 200:
            report.problems.append(f"/health: {response.status_code} {response.text}")
        await asyncio.sleep(0.1)


async def _watch_answers(http: httpx.AsyncClient, report: Report) -> None:
    first = ""
    while True:
        response = await http.post(COMPLETIONS, json=REFERENCE, timeout=None)
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in response.text.splitlines() if line[6:7] == "{"]
        report.references += 1
        first = first or "".join(texts)
        if "".join(texts) != first or not first:
            report.problems.append(f"the reference stream was {''.join(texts)!r} instead of {first!r}")
        await asyncio.sleep(0.3)


def run_schemathesis(command: str, url: str, report: Report) -> None:
    """Property tests from the OpenAPI description. Raises `SystemExit` if the tool is not there."""
    program = shutil.which(command)
    if program is None:
        raise SystemExit(f"{command} is not installed; pip install schemathesis, or leave out --schemathesis")
    arguments = [
        program,
        "run",
        f"{url}/openapi.json",
        "--checks",
        "not_a_server_error",
        "--phases",
        "coverage,fuzzing",
    ]
    arguments += ["--max-examples", "150", "--request-timeout", str(SECONDS), "--generation-deterministic"]
    with tempfile.TemporaryDirectory() as folder:  # it keeps what it found there
        done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    report.schemathesis = next((line for line in reversed(lines) if "generated" in line), lines[-1] if lines else "")
    if done.returncode:
        report.problems.append(f"schemathesis: {done.stdout[-6000:]}{done.stderr[-2000:]}")


def run(artifact: str, options: argparse.Namespace) -> Report:
    """All of it, against a server of its own."""
    report = Report(options.bodies)
    longest = min(CONTEXT, read_manifest(Path(artifact)).limits.max_model_len)
    arguments = ["--kv-cache-memory", options.kv_cache_memory, "--max-model-len", str(longest)]
    if options.threads:
        arguments += ["--threads", str(options.threads)]
    with Served(artifact, *arguments) as server:
        engine, started = server.engine_pid(), time.monotonic()
        all_cases = list(cases(options.bodies, options.seed, field_types(server.get("/openapi.json").json())))
        size = -(-len(all_cases) // PARTS)
        for begin in range(0, len(all_cases), size):
            part = all_cases[begin : begin + size]
            asyncio.run(fuzz(server, iter(part), options.together, report))
            _settle(server, report)
        if options.schemathesis:
            run_schemathesis(options.schemathesis, server.url, report)
            _settle(server, report)
        report.seconds = round(time.monotonic() - started, 1)
        if server.engine_pid() != engine:
            report.problems.append("the engine process was restarted")
        errors = [line for line in server.output().splitlines() if "Traceback" in line or "Error" in line]
        report.problems += [f"in the log: {line}" for line in errors[:20]]
    if options.bodies >= 2000 and report.memory[-1] > report.memory[PARTS // 2 - 1] + GROWTH_LIMIT:
        report.problems.append(f"memory grew: {report.memory}")
    return report


def _settle(server: Served, report: Report) -> None:
    """Wait until nothing runs, and note what the processes hold."""
    busy = server.busy(10)
    if busy:
        report.problems.append(f"not at 0 within 10 s: {busy}")
    if server.get("/health").status_code != 200:
        report.problems.append("/health is not 200")
    footprints = server.footprints().values()
    report.memory.append(sum(f.memory for f in footprints))
    report.files.append(sum(f.files for f in footprints))


def main() -> int:
    parser = argparse.ArgumentParser(description="Malformed and hostile requests.")
    parser.add_argument("artifact")
    parser.add_argument("--bodies", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=4, help="requests in flight")
    parser.add_argument("--kv-cache-memory", default="64MiB")
    parser.add_argument("--threads", type=int, default=0, help="threads of the engine; 0: its default")
    parser.add_argument("--schemathesis", metavar="COMMAND", help="also run this schemathesis")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    options = parser.parse_args()
    report = run(options.artifact, options)
    if options.json:
        print(json.dumps(vars(report)))
    else:
        values: dict[str, Any] = {n: v for n, v in vars(report).items() if n not in ("problems", "statuses")}
        kinds = [(kind, dict(sorted(counts.items()))) for kind, counts in sorted(report.statuses.items())]
        print(table([*values.items(), *kinds]))
        print(*(report.problems or ["no problems"]), sep="\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
