"""Thousands of mixed requests over HTTP to a server whose cache is too small for them.

    python -m benchmarks.http_soak ARTIFACT [--requests 2000] [--seed 0] [--together 32] [--distinct 0] [--json]

Requests differ in route, length, sampling, structure and number of answers; some stream, about a tenth is bad, and the
clients of another tenth close their sockets early. They are sent in four waves. Then each different good request is
sent alone, with a salt so that it finds nothing in the prefix cache, and everything that it was answered before must
equal that answer: text, token ids, reasons and log-probabilities. After each wave nothing may be running, waiting or
hold memory; from the first wave to the last, memory may grow by 2 %, and open files and threads must stay as many. The
exit status is 1 if any of it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.http_requests import Answer, Sent, answer_of, answer_of_events, make_requests
from benchmarks.served import Footprint, Served, table
from inferir.ir.contract.artifact import read_manifest

WAVES = 4
GROWTH_LIMIT = 0.02
GROWTH_BYTES = 4 * 2**20  # for processes so small that 2 % is less
SECONDS = 600.0


class WrongError(Exception):
    """The server did what it must not do."""


@dataclass
class Report:
    """What happened. growth: share by which the memory of the processes grew after the first wave."""

    requests: int
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    compared: int = 0
    tokens: int = 0
    preemptions: float = 0
    prefix_hits: float = 0
    compile_events: float = 0
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    seconds: float = 0.0
    seconds_alone: float = 0.0

    @property
    def growth(self) -> float:
        return self.memory[-1] / self.memory[0] - 1

    def note(self, footprints: dict[str, Footprint]) -> None:
        """Add the sums over the processes."""
        for name in ("memory", "files", "threads"):
            getattr(self, name).append(sum(getattr(f, name) for f in footprints.values()))

    def judge(self) -> None:
        """Turn numbers that must not be into problems. In a short run, the first wave does not yet fill all caches."""
        if self.compile_events:
            self.problems.append(f"{self.compile_events:g} compilers were loaded")
        if not self.preemptions:
            self.problems.append("nothing was preempted: the cache is too large for this test")
        settled = self.requests >= 1000
        if settled and self.memory[-1] - self.memory[0] > max(GROWTH_LIMIT * self.memory[0], GROWTH_BYTES):
            self.problems.append(f"memory grew by {self.growth:.1%} after the first wave")
        for name in ("files", "threads"):
            values = getattr(self, name)
            if settled and values[-1] > values[0] + 2:
                self.problems.append(f"open {name} grew: {values}")


class Client:
    """Sends requests and keeps every answer by its key."""

    def __init__(self, url: str, report: Report) -> None:
        self.url = url
        self.report = report
        self.answers: dict[int, list[Answer]] = {}

    async def wave(self, requests: list[Sent], together: int) -> None:
        """Send them in order, `together` at a time."""
        queue = iter(requests)
        limits = httpx.Limits(max_connections=together, max_keepalive_connections=together)
        async with httpx.AsyncClient(base_url=self.url, timeout=SECONDS, limits=limits) as http:

            async def work() -> None:
                for sent in queue:
                    try:
                        self.report.counts[await self._send(http, sent)] += 1
                    except (WrongError, httpx.HTTPError, KeyError, ValueError) as error:
                        text = sent.content.decode()
                        self.report.problems.append(f"{type(error).__name__}: {error}: {sent.path} {text[:300]}")

            await asyncio.gather(*(work() for _ in range(together)))

    async def _send(self, http: httpx.AsyncClient, sent: Sent) -> str:
        """One request; what became of it."""
        if sent.key is not None and sent.leave_after is not None and not sent.stream:
            try:
                async with asyncio.timeout(sent.leave_after):
                    await self._answer(http, sent)
            except TimeoutError:
                return "left"
            return "answered"
        return await self._answer(http, sent)

    async def _answer(self, http: httpx.AsyncClient, sent: Sent) -> str:
        headers = {"content-type": "application/json"}
        async with http.stream("POST", sent.path, content=sent.content, headers=headers) as response:
            if response.status_code != sent.status:
                body = (await response.aread()).decode()
                raise WrongError(f"status {response.status_code} instead of {sent.status}: {body[:300]}")
            if sent.key is None:
                if not json.loads(await response.aread())["error"]["message"]:
                    raise WrongError("an error without a message")
                return "refused"
            if not sent.stream:
                self._take(sent.key, json.loads(await response.aread()))
                return "answered"
            events = []
            async for event in _events(response):
                events.append(event)
                if len(events) == sent.leave_after:
                    return "left"
            self._take_events(sent.key, events)
            return "streamed"

    def _take(self, key: int, document: dict[str, Any]) -> None:
        answer = answer_of(document)
        self._keep(key, answer, document["usage"])

    def _take_events(self, key: int, events: list[dict[str, Any]]) -> None:
        if any(event["usage"] is not None for event in events[:-1]) or events[-1]["choices"]:
            raise WrongError("the usage did not come in a last event of its own")
        self._keep(key, answer_of_events(events), events[-1]["usage"])

    def _keep(self, key: int, answer: Answer, usage: dict[str, int]) -> None:
        tokens = sum(len(c["token_ids"]) for c in answer)
        if usage["completion_tokens"] != tokens:
            raise WrongError(f"usage counts {usage['completion_tokens']} tokens, but there are {tokens}")
        self.report.tokens += tokens
        self.answers.setdefault(key, []).append(answer)

    async def compare(self, good: list[Sent]) -> None:
        """Send each good request alone and compare."""
        async with httpx.AsyncClient(base_url=self.url, timeout=SECONDS) as http:
            for sent in good:
                assert sent.key is not None
                before = self.answers.pop(sent.key, [])
                if not before:
                    continue
                body = {**sent.body, "cache_salt": f"alone {sent.key}"}
                await self._answer(http, dataclasses.replace(sent, body=body))
                ((alone,), self.answers[sent.key]) = self.answers[sent.key], before
                self.report.compared += len(before)
                for answer in before:
                    if answer != alone:
                        self.report.problems.append(f"request {sent.key} differs alone: {answer} != {alone}"[:2000])


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a whole stream. Raises `WrongError` if it breaks off."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line:
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise WrongError(f"a stream failed: {event['error']}")
            yield event
    raise WrongError("a stream ended without [DONE]")


def soak(artifact: str, options: argparse.Namespace) -> Report:
    """Run all of it."""
    manifest = read_manifest(Path(artifact))
    limits = manifest.limits
    most = min(64, limits.max_model_len // 4)
    template = min(64, limits.max_model_len // 8)
    longest = min(2000, limits.max_model_len - most - template)
    room = longest + most + template
    blocks = options.kv_blocks or 6 * room // limits.block_size // 5
    seats = min(16, limits.max_seqs)
    requests, good = make_requests(
        options.requests,
        options.seed,
        vocab=manifest.model.vocab_size,
        longest=longest,
        most=most,
        distinct=options.distinct or max(20, options.requests // 8),
    )
    report = Report(len(requests))
    arguments = ["--kv-cache-memory", str((blocks + 1) * manifest.memory.kv_block_bytes), "--max-num-seqs", str(seats)]
    if options.threads:
        arguments += ["--threads", str(options.threads)]
    with Served(artifact, *arguments, "--max-model-len", str(room)) as server:
        client = Client(server.url, report)
        engine = server.engine_pid()
        started = time.monotonic()
        size = -(-len(requests) // WAVES)
        for begin in range(0, len(requests), size):
            asyncio.run(client.wave(requests[begin : begin + size], options.together))
            _check_idle(server, report, begin + size)
            report.note(server.footprints())
            print(
                f"{begin + size} requests, {time.monotonic() - started:.0f} s: {dict(report.counts)}", file=sys.stderr
            )
        report.seconds = round(time.monotonic() - started, 1)
        metrics = server.metrics()
        report.preemptions, report.prefix_hits = metrics["num_preemptions_total"], metrics["prefix_cache_hits_total"]
        asyncio.run(client.compare(good))
        report.seconds_alone = round(time.monotonic() - started - report.seconds, 1)
        _check_idle(server, report, len(requests))
        report.compile_events = server.metrics()["compile_events_total"]
        if server.engine_pid() != engine:
            report.problems.append("the engine process was restarted")
    report.judge()
    return report


def _check_idle(server: Served, report: Report, requests: int) -> None:
    busy = server.busy()
    if busy:
        report.problems.append(f"after {requests} requests: not at 0 within 2 s: {busy}")
    if server.get("/health").status_code != 200:
        report.problems.append(f"after {requests} requests: /health is not 200")


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak test of the server.")
    parser.add_argument("artifact")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=32, help="requests in flight")
    parser.add_argument("--distinct", type=int, default=0, help="different good requests; 0: an eighth")
    parser.add_argument("--kv-blocks", type=int, default=0, help="0: those of 1.2 requests of full length")
    parser.add_argument("--threads", type=int, default=0, help="threads of the engine; 0: its default")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    options = parser.parse_args()
    report = soak(options.artifact, options)
    values = {**vars(report), "growth": round(report.growth, 5)}
    if options.json:
        print(json.dumps(values))
    else:
        print(table([(name, value) for name, value in values.items() if name != "problems"]))
        print(*(report.problems or ["no problems"]), sep="\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
