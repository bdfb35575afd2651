"""`inferir bench`: formulas on events made by hand, and every command against the tiny artifact."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from serving import COMMAND, OPTIONS, Server

from inferir.cli.bench_load import arrivals
from inferir.cli.bench_metrics import (
    Record,
    distribution,
    load_summary,
    meets,
    parse_goals,
    random_prompts,
    samples,
)
from inferir.ir.errors import InferirError

ENGINE = ("--threads", 1, "--kv-cache-memory", "4MiB")
SPREAD = ("mean", "p50", "p90", "p99")
PNG = b"\x89PNG"
Cli = Callable[..., Any]
Fails = Callable[..., str]


@pytest.fixture(scope="module")
def server(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tiny_artifact, tmp_path_factory.mktemp("bench") / "log", "--api-key", "s3cret")
    try:
        yield server.ready()
    finally:
        server.close()


def ordered(spread: dict[str, float]) -> bool:
    return set(spread) == set(SPREAD) and 0 <= spread["p50"] <= spread["p90"] <= spread["p99"]


# --- formulas ---------------------------------------------------------------------------------------------------------

# Sent at 1.0 s with tokens after 200, 300 and 600 ms; the other one brings a single token after 500 ms.
THREE = Record(1.0, prompt_tokens=5, tokens=[1.2, 1.3, 1.6], usage=3, ended=2.0)
ONE = Record(2.5, prompt_tokens=7, tokens=[3.0], usage=1, ended=3.0)
BROKEN = Record(1.5, prompt_tokens=9, tokens=[1.6, 1.7], ended=5.0, error="no")


def test_times_of_a_request() -> None:
    assert THREE.ttft == pytest.approx(0.2)
    assert THREE.itl == pytest.approx([0.1, 0.3])
    assert THREE.tpot == pytest.approx(0.2)
    assert THREE.e2e == pytest.approx(0.6)
    assert THREE.e2e == pytest.approx(THREE.ttft + sum(THREE.itl))
    assert (ONE.tpot, ONE.itl) == (None, [])


def test_percentiles() -> None:
    assert distribution([4, 1, 3, 2]) == pytest.approx({"mean": 2.5, "p50": 2.5, "p90": 3.7, "p99": 3.97})
    assert distribution([7.0]) == {"mean": 7, "p50": 7, "p90": 7, "p99": 7}
    assert distribution([1, 2, 6]) == pytest.approx({"mean": 3, "p50": 2, "p90": 5.2, "p99": 5.92})


def test_samples_leave_failures_out() -> None:
    found = samples([THREE, BROKEN, ONE])
    assert found["ttft"] == pytest.approx([200, 500])
    assert found["tpot"] == pytest.approx([200])
    assert found["itl"] == pytest.approx([100, 300])
    assert found["e2e"] == pytest.approx([600, 500])


def test_summary_of_a_load() -> None:
    out = load_summary([THREE, BROKEN, ONE], {"ttft": 250, "tpot": 250})
    assert (out["completed"], out["failed"], out["errors"]) == (2, 1, {"no": 1})
    assert (out["prompt_tokens"], out["output_tokens"]) == (12, 4)
    assert out["duration_s"] == pytest.approx(4.0)
    assert out["request_throughput"] == pytest.approx(0.5)
    assert out["output_throughput"] == pytest.approx(1.0)
    assert out["total_throughput"] == pytest.approx(4.0)
    assert out["goodput"] == pytest.approx(0.25)
    assert load_summary([THREE], {})["goodput"] is None
    assert load_summary([ONE], {})["tpot_ms"] is None


def test_goals() -> None:
    assert parse_goals(["ttft:200 tpot:50", "e2e:1e3"]) == {"ttft": 200, "tpot": 50, "e2e": 1000}
    assert parse_goals([]) == {}
    assert meets(THREE, {"ttft": 201, "tpot": 201, "e2e": 601})
    assert not meets(THREE, {"ttft": 201, "tpot": 199})
    assert not meets(THREE, {"e2e": 599})
    assert meets(ONE, {"tpot": 1})


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:nan", "ttft:inf", "itl:5", "ttft=5"])
def test_goals_that_are_none(text: str) -> None:
    with pytest.raises(InferirError, match="is not a goal"):
        parse_goals([text])


def test_prompts_follow_the_seed() -> None:
    prompts = random_prompts(3, 4, 6, 100, prefix=2)
    assert prompts == random_prompts(3, 4, 6, 100, prefix=2)
    assert prompts != random_prompts(4, 4, 6, 100, prefix=2)
    assert {len(p) for p in prompts} == {8}
    assert len({tuple(p[:2]) for p in prompts}) == 1
    assert len({tuple(p[2:]) for p in prompts}) == 4
    assert all(0 <= i < 100 for p in prompts for i in p)


def test_arrivals() -> None:
    assert arrivals(3, math.inf, 0) == [0, 0, 0]
    times = arrivals(2000, 50.0, 1)
    assert times == arrivals(2000, 50.0, 1) == sorted(times)
    assert times[-1] == pytest.approx(40, rel=0.1)


# --- in this process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["latency", "throughput", "startup", "serve"])
def test_help(cli: Cli, command: str) -> None:
    result = cli("bench", command, "--help")
    assert (result.status, result.err) == (0, "")


def test_latency(cli: Cli, tiny_artifact: Path) -> None:
    sizes = ("--batch-size", 3, "--input-len", 9, "--output-len", 4, "--repetitions", 3)
    out = cli("bench", "latency", tiny_artifact, *sizes, *ENGINE, "--json").json
    assert (out["batch_size"], out["input_len"], out["output_len"], out["repetitions"]) == (3, 9, 4, 3)
    assert ordered(out["seconds"])
    assert out["output_throughput"] == pytest.approx(12 / out["seconds"]["mean"])


def test_latency_table(cli: Cli, tiny_artifact: Path) -> None:
    sizes = ("--input-len", 4, "--output-len", 2, "--repetitions", 1, "--warmup", 0)
    result = cli("bench", "latency", tiny_artifact, *sizes, *ENGINE)
    assert (result.status, result.err) == (0, "")
    assert "4 + 2 tokens, batch size 1, 1 repetition" in result.out
    assert all(word in result.out for word in ("mean s", "median s", "p90 s", "p99 s", "output tokens/s"))


def test_throughput(cli: Cli, tiny_artifact: Path, tmp_path: Path) -> None:
    sizes = ("--num-prompts", 12, "--input-len", 10, "--output-len", 5)
    plot = tmp_path / "t.png"
    out = cli("bench", "throughput", tiny_artifact, *sizes, *ENGINE, "--json", "--plot", plot).json
    assert (out["prompt_tokens"], out["output_tokens"]) == (120, 60)
    assert out["request_throughput"] == pytest.approx(12 / out["seconds"])
    assert out["total_throughput"] == pytest.approx(15 * out["request_throughput"])
    assert out["output_throughput"] == pytest.approx(5 * out["request_throughput"])
    assert plot.read_bytes().startswith(PNG)


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_too_long(fails: Fails, tiny_artifact: Path, command: str) -> None:
    line = fails("bench", command, tiny_artifact, "--input-len", 100, "--output-len", 29, *ENGINE)
    assert "129 tokens" in line
    assert "(128)" in line


def test_a_batch_too_large(fails: Fails, tiny_artifact: Path) -> None:
    assert "max_num_seqs" in fails("bench", "latency", tiny_artifact, "--batch-size", 9, *ENGINE)


@pytest.mark.parametrize("command", ["latency", "throughput", "startup"])
def test_no_artifact(fails: Fails, tmp_path: Path, command: str) -> None:
    assert "not found" in fails("bench", command, tmp_path / "nothing")


def test_plots_are_refused_before_measuring(fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "nothing"
    assert "must end in" in fails("bench", "latency", missing, "--plot", tmp_path / "x.txt")
    assert "not a folder" in fails("bench", "latency", missing, "--plot", tmp_path / "no" / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "--plot needs matplotlib" in fails("bench", "latency", missing, "--plot", tmp_path / "x.png")


def test_startup(cli: Cli, tiny_artifact: Path) -> None:
    result = cli("bench", "startup", tiny_artifact, "--repetitions", 1, *ENGINE, "--json")
    seconds = result.json["seconds"]
    assert set(seconds) == {"llm_first_token", "serve_listening", "serve_ready"}
    assert all(ordered(s) and s["mean"] > 0 for s in seconds.values())
    assert seconds["serve_listening"]["mean"] <= seconds["serve_ready"]["mean"]


# --- a server ---------------------------------------------------------------------------------------------------------

SMALL = ("--num-prompts", 10, "--input-len", 12, "--output-len", 6, "--ignore-eos", "--api-key", "s3cret")


def bench(cli: Cli, url: str, *options: object) -> Any:
    result = cli("bench", "serve", "--url", url, *options, "--json")
    assert (result.status, result.err) == (0, "")
    return result.json


def test_serve(cli: Cli, server: Server) -> None:
    out = bench(cli, server.url, *SMALL, "--max-concurrency", 4, "--goodput", "ttft:1e9 tpot:1e9")
    assert (out["completed"], out["failed"], out["errors"]) == (10, 0, {})
    assert (out["prompt_tokens"], out["output_tokens"]) == (120, 60)
    assert all(ordered(out[f"{name}_ms"]) for name in ("ttft", "tpot", "itl", "e2e"))
    assert out["e2e_ms"]["mean"] == pytest.approx(out["ttft_ms"]["mean"] + 5 * out["itl_ms"]["mean"])
    assert out["tpot_ms"]["mean"] == pytest.approx(out["itl_ms"]["mean"])
    assert out["goodput"] == pytest.approx(out["request_throughput"])
    assert out["output_throughput"] == pytest.approx(60 / out["duration_s"])


def test_serve_with_a_shared_prefix_and_a_rate(cli: Cli, server: Server, tmp_path: Path) -> None:
    plot = tmp_path / "load.png"
    hits = server.stats()["prefix_hits"]
    options = ("--prefix-len", 64, "--request-rate", 50, "--goodput", "ttft:1e-6", "--plot", plot)
    out = bench(cli, server.url, *SMALL, *options)
    assert (out["completed"], out["prompt_tokens"], out["goodput"]) == (10, 760, 0)
    server.wait(lambda: server.stats()["prefix_hits"] > hits)
    assert plot.read_bytes().startswith(PNG)


def test_serve_table(cli: Cli, server: Server) -> None:
    result = cli("bench", "serve", "--url", f"{server.url}/", *SMALL)
    assert (result.status, result.err) == (0, "")
    assert all(f"{name} " in result.out for name in ("TTFT", "TPOT", "ITL", "E2E"))
    assert "failed requests" in result.out
    assert "goodput" not in result.out


def test_errors_of_a_server(fails: Fails, server: Server) -> None:
    url = ("--url", server.url)
    assert "does not serve 'other'; it serves tiny" in fails("bench", "serve", *url, *SMALL, "--model", "other")
    assert "129 tokens" in fails("bench", "serve", *url, *SMALL, "--prefix-len", 111)
    assert "takes 128" in fails("bench", "serve", *url, *SMALL, "--prefix-len", 111)
    refused = fails("bench", "serve", *url, *SMALL, "--vocab-size", 10**9)
    assert "all 10 requests failed" in refused
    assert "status 400" in refused
    assert "status 401" in fails("bench", "serve", *url, *SMALL, "--api-key", "wrong")


def test_no_server(fails: Fails) -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        assert "connection refused" in fails("bench", "serve", "--url", f"http://127.0.0.1:{port}")
    for url in ("localhost:8000", "http://", "http://127.0.0.1:x"):
        assert "is not an address" in fails("bench", "serve", "--url", url)
    assert "is not a goal" in fails("bench", "serve", "--goodput", "speed:1")


USAGE = {"prompt_tokens": 1, "completion_tokens": 2}
TOKENS = [{"choices": [{"text": "a", "token_ids": [1]}]}, {"choices": [{"text": "", "token_ids": [2]}]}]
SLEEP = object()
GOOD = [*TOKENS, {"choices": [], "usage": USAGE}]


@pytest.fixture
def scripted() -> Iterator[Callable[[Sequence[Sequence[object]]], str]]:
    """A server that answers completions with given events, one script per request; returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(scripts: Sequence[Sequence[object]]) -> str:
        left = list(scripts)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(json.dumps({"data": [{"id": "m"}]}))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._send("")
                for event in left.pop(0):
                    if event is SLEEP:
                        time.sleep(2)
                        continue
                    text = event if isinstance(event, str) else json.dumps(event)
                    with contextlib.suppress(OSError):
                        self.wfile.write(f"data: {text}\r\n\r\n".encode())

            def _send(self, text: str) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([*TOKENS[:1], *GOOD[2:], "[DONE]"], "usage counts 2 tokens, but 1 were streamed"),
        ([*TOKENS, "[DONE]"], "the answer has no usage"),
        (GOOD, "the stream ended without [DONE]"),
        ([*TOKENS, {"error": {"message": "engine died"}}], "engine died"),
        (["{", "[DONE]"], "an event of the stream is no part of a completion"),
        ([{"choices": [], "usage": {**USAGE, "completion_tokens": 0}}, "[DONE]"], "the answer has no token"),
    ],
)
def test_failed_requests_are_counted(cli: Cli, scripted: Any, events: list[object], error: str) -> None:
    url = scripted([[*GOOD, "[DONE]"], events, [*GOOD, "[DONE]"]])
    options = ("--num-prompts", 3, "--max-concurrency", 1)
    result = cli("bench", "serve", "--url", url, *options, "--json")
    assert (result.status, result.err) == (1, "")
    out = result.json
    assert (out["completed"], out["failed"], out["errors"]) == (2, 1, {error: 1})
    assert (out["prompt_tokens"], out["output_tokens"]) == (2, 4)


def test_a_request_may_take_only_so_long(cli: Cli, scripted: Any) -> None:
    url = scripted([[*GOOD, "[DONE]"], [*TOKENS[:1], SLEEP, *GOOD[1:], "[DONE]"]])
    options = ("--num-prompts", 2, "--max-concurrency", 1, "--timeout", 0.5)
    result = cli("bench", "serve", "--url", url, *options, "--json")
    assert result.status == 1
    assert result.json["errors"] == {"no complete answer within 0.5 s": 1}


def test_a_server_that_dies_ends_the_load(cli: Cli, tiny_artifact: Path, tmp_path: Path) -> None:
    """The first answers are there when it is killed; nothing is sent to a dead server for the rest of the schedule."""
    server = Server(tiny_artifact, tmp_path / "log").ready()

    def kill() -> None:
        server.wait(lambda: server.stats()["generated"] >= 8)
        server.process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        options = ("--num-prompts", 2000, "--input-len", 4, "--output-len", 2, "--request-rate", 20)
        result = cli("bench", "serve", "--url", server.url, *options, "--json")
        out = result.json
        assert (result.status, out["completed"] + out["failed"]) == (1, 2000)
        assert out["completed"] > 0
        assert out["errors"]["not sent, since the server is gone"] > 1900
        assert out["duration_s"] < 60
    finally:
        killer.join()
        server.close()


def test_a_unix_socket(cli: Cli, tiny_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*COMMAND, str(tiny_artifact), *OPTIONS, "--uds", str(path)], stdout=log, stderr=log)
    try:
        wait_for(lambda: "ready after" in (tmp_path / "log").read_text())
        result = cli("bench", "serve", "--uds", path, "--num-prompts", 3, "--input-len", 4, "--output-len", 2)
        assert (result.status, result.err) == (0, "")
        assert result.out.startswith("tiny: 3 prompts of 4 + 2 tokens")
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
