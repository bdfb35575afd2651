"""What happens around requests: starting, stopping, dying, keys, browsers, clients that leave."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import COMMAND, OPTIONS, SECONDS, Server, Start, alive

LONG = {"prompt": "tell", "max_tokens": 120, "temperature": 0, "ignore_eos": True, "stream": True}
KEY = {"authorization": "Bearer s3cret"}


def events(response: httpx.Response) -> list[Any]:
    """The JSON events of a stream, and "[DONE]"."""
    data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


def slow(server: Server) -> None:
    """Stop the engine for a moment, so that what is sent next is surely unfinished."""
    os.kill(server.engine_pid(), signal.SIGSTOP)


def go_on(server: Server) -> None:
    os.kill(server.engine_pid(), signal.SIGCONT)


# --- starting ---------------------------------------------------------------------------------------------------------


def test_alive_before_ready(start: Start) -> None:
    server = start()
    seen = []
    while not seen or seen[-1][1] != 200:
        answer = server.get("/ready")
        seen.append((server.get("/health").status_code, answer.status_code, answer.json()["phase"]))
        time.sleep(0.01)
    assert {h for h, _, _ in seen} == {200}
    assert seen[-1][1:] == (200, "ready")
    assert {(r, p) for _, r, p in seen[:-1]} <= {(503, "loading")}
    assert server.complete().status_code == 200
    assert any(line.startswith("ready after ") for line in server.lines())


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_address_in_use(tiny_artifact: Path, tmp_path: Path, family: str) -> None:
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_INET if family == "tcp" else socket.AF_UNIX) as taken:
        taken.bind(("127.0.0.1", 0) if family == "tcp" else path)
        taken.listen()
        name = str(taken.getsockname()[1]) if family == "tcp" else path
        place = ["--port", name] if family == "tcp" else ["--uds", path]
        done = subprocess.run([*COMMAND, str(tiny_artifact), *place], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert name in done.stderr
    assert "in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--port", "70000"], 1, "port 70000"),
        (["--host", "203.0.113.7"], 1, "203.0.113.7"),
        (["--log-level", "loud"], 2, "--log-level"),
        (["--max-num-seqs", "100000"], 1, "max_num_seqs"),
        (["--kv-cache-memory", "much"], 1, "kv_cache_memory"),
        (["--chat-template", "/nowhere/x.jinja"], 1, "/nowhere/x.jinja"),
    ],
)
def test_options_that_cannot_be_had(tiny_artifact: Path, options: list[str], status: int, text: str) -> None:
    command = [*COMMAND, str(tiny_artifact), "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_unix_socket(tiny_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "sock"
    process = subprocess.Popen([*COMMAND, str(tiny_artifact), "--uds", str(path), *OPTIONS], stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://server") as client:
            end = time.monotonic() + SECONDS
            status = 0
            while status != 200:
                assert time.monotonic() < end
                time.sleep(0.05)
                with contextlib.suppress(httpx.TransportError):
                    status = client.get("/ready").status_code
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


# --- the engine dies --------------------------------------------------------------------------------------------------


def killed_while_it_answers(server: Server) -> list[Any]:
    """The rest of a stream after its first event, when the engine was killed. An answer that had ended by then is asked
    for once more.
    """
    for attempt in range(1, 21):
        pid = server.engine_pid()
        with server.http.stream("POST", "/v1/completions", json={**LONG, "n": 8}) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(pid, signal.SIGKILL)
            rest = [x.removeprefix("data: ") for x in lines if x]
        server.wait(lambda n=attempt: server.log.read_text().count("starting it again") == n)
        server.wait(lambda: server.get("/ready").status_code == 200)
        assert server.engine_pid() != pid
        if rest[-1] != "[DONE]":
            return [json.loads(x) for x in rest]
    raise AssertionError("every answer ended before the engine did")


def test_a_killed_engine(start: Start) -> None:
    server = start().ready()
    before = server.complete().json()["choices"]
    rest = killed_while_it_answers(server)
    assert rest[-1]["error"]["type"] == "service_unavailable_error"
    assert "died" in rest[-1]["error"]["message"]
    assert server.complete().json()["choices"] == before
    server.idle()
    assert server.stop() == 0


def test_health_while_the_engine_is_dead(start: Start) -> None:
    """Liveness and readiness fail until the next engine serves; requests meanwhile get a 503, not a hang."""
    server = start().ready()
    seen = set()
    pid = server.engine_pid()
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        health, ready = server.get("/health"), server.get("/ready")
        seen.add((health.status_code, ready.json()["phase"]))
        if (503, "restarting") in seen and ready.status_code == 200:
            break
        if health.status_code == 503:
            refused = server.complete()
            assert refused.status_code == 200 or refused.json()["error"]["code"] in ("restarting", "engine")
    assert (503, "restarting") in seen
    assert server.get("/health").status_code == 200


def test_no_process_remains(start: Start) -> None:
    server = start().ready()
    engine = server.engine_pid()
    server.process.kill()
    server.process.wait()
    server.wait(lambda: not alive(engine))


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_drain(start: Start) -> None:
    """Running streams finish, new requests are refused, and the exit status is 0."""
    server = start("--grace", "20").ready()
    engine = server.engine_pid()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        slow(server)
        streams = [pool.submit(lambda: events(server.post("/v1/completions", LONG))) for _ in range(2)]
        time.sleep(0.5)
        go_on(server)
        server.process.send_signal(signal.SIGTERM)
        refused = None
        with contextlib.suppress(httpx.TransportError):
            server.wait(lambda: server.get("/ready").json()["phase"] == "draining")
            refused = server.complete()
        results = [s.result(SECONDS) for s in streams]
    assert refused is None or (refused.status_code == 503 and refused.json()["error"]["code"] == "draining")
    for result in results:
        assert result[-1] == "[DONE]"
        assert result[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(SECONDS) == 0
    assert not alive(engine)


@pytest.mark.parametrize("second", [False, True])
def test_a_stream_that_does_not_end(start: Start, second: bool) -> None:
    """When the grace is over, or at a second signal, streams end with an error event."""
    server = start("--grace", "600" if second else "1", "--max-num-seqs", "1").ready()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow(server)
        stream = pool.submit(lambda: events(server.post("/v1/completions", {**LONG, "n": 8})))
        time.sleep(0.5)
        os.kill(server.engine_pid(), signal.SIGCONT)
        server.wait(lambda: server.stats()["running"] > 0)
        slow(server)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        if second:
            server.process.send_signal(signal.SIGTERM)
        result = stream.result(SECONDS)
    assert result[-1]["error"]["code"] == "draining"
    assert "[DONE]" not in result
    assert server.process.wait(SECONDS) == 0


def test_signals_of_a_whole_service(start: Start) -> None:
    """A signal that reaches the engine process too does not end it before its requests."""
    server = start().ready()
    engine = server.engine_pid()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow(server)
        stream = pool.submit(lambda: events(server.post("/v1/completions", LONG)))
        time.sleep(0.5)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine, number)
        go_on(server)
        server.process.send_signal(signal.SIGTERM)
        assert stream.result(SECONDS)[-1] == "[DONE]"
    assert server.process.wait(SECONDS) == 0
    assert not any("error" in line for line in server.lines())


def test_the_front_process_is_light() -> None:
    """It loads neither arrays nor the engine, so that the engine process starts at once."""
    heavy = "{'numpy', 'torch', 'tvm', 'inferir.runtime.engine.engine'}"
    program = f"import sys, inferir.server.app; print(*{heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_stopped_while_loading(start: Start) -> None:
    assert start().stop() == 0


# --- keys and browsers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text("other\n\ns3cret\n")
    options = ("--api-key-file", str(folder / "keys"), "--allowed-origin", "http://good.example")
    server = Server(tiny_artifact, folder / "log", *options)
    try:
        server.wait(lambda: server.get("/ready").status_code == 200)
        yield server
    finally:
        server.close()


def test_every_route_needs_the_key(guarded: Server) -> None:
    paths = guarded.get("/openapi.json", headers=KEY).json()["paths"]
    closed = {(p, m) for p, methods in paths.items() for m in methods}
    opened = {p for p, m in closed if m in ("get", "head") and guarded.http.request(m, p).status_code != 401}
    assert opened == {"/", "/health", "/ready", "/version", "/metrics", "/stats"}
    for path, method in sorted(closed):
        if path in opened:
            continue
        for header in (None, "Bearer wrong", "s3cret", "Basic s3cret", "Bearer", "Bearer s3cret2"):
            headers = {"authorization": header} if header else {}
            for spelling in (path, f"{guarded.url}/{path}", f"{path}/"):
                assert guarded.http.request(method, spelling, headers=headers).status_code == 401, (path, header)
        assert guarded.http.request(method, path, headers=KEY).status_code != 401
        assert guarded.http.request(method, f"{guarded.url}/{path}", headers=KEY).status_code == 404
        for other in ("HEAD", "OPTIONS", "PUT", "DELETE"):
            assert guarded.http.request(other, path).status_code == 401, (other, path)
            assert guarded.http.request(other, path, headers=KEY).status_code != 401
    assert guarded.post("/v1/completions", {"prompt": "x"}, headers=KEY).status_code == 200
    assert (
        guarded.post("/v1/completions", {"prompt": "x"}, headers={"authorization": "bearer other"}).status_code == 200
    )
    for path in ("//v1/completions", "/v1/completions/", "/V1/completions", "/docs"):
        assert guarded.post(path, {"prompt": "x"}).status_code == 401
    assert guarded.http.head("/v1/models").status_code == 401
    assert "s3cret" not in guarded.log.read_text()


def test_browsers(guarded: Server) -> None:
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    good, bad = {"origin": "http://good.example"}, {"origin": "http://bad.example"}
    answer = guarded.http.options("/v1/chat/completions", headers={**good, **ask})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "http://good.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in guarded.http.options("/v1/completions", headers={**bad, **ask}).headers
    refused = guarded.post("/v1/completions", LONG, headers=good)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://good.example"
    streamed = guarded.post("/v1/completions", LONG, headers={**good, **KEY})
    assert streamed.status_code == 200
    assert streamed.headers["access-control-allow-origin"] == "http://good.example"


# --- clients that leave, and metrics ----------------------------------------------------------------------------------


def leave(server: Server, body: dict[str, Any], seconds: float) -> None:
    """Send a request and close the connection after a while."""
    address = server.url.removeprefix("http://").split(":")
    text = json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
    with socket.create_connection((address[0], int(address[1]))) as connection:
        connection.sendall(f"{head}\r\n\r\n{text}".encode())
        time.sleep(seconds)


def test_clients_that_leave(server: Server) -> None:
    """Streamed or not, running or queued, nothing of their requests remains."""
    before = server.complete().json()["choices"]
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for i in range(24):
                body = {**LONG, "stream": i % 2 == 0, "n": 4}
                pool.submit(leave, server, body, 0.02 * (i % 4))
        server.idle(2)
    assert server.complete().json()["choices"] == before


def metrics(server: Server) -> dict[str, float]:
    lines = [line for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines)}


def total(values: dict[str, float], name: str) -> float:
    return sum(v for k, v in values.items() if k.startswith(f"inferir_{name}{{"))


def test_metrics_equal_usage(server: Server) -> None:
    server.idle()
    first = metrics(server)
    usages = [
        server.complete(prompt="x" * (1 + i), max_tokens=3 + i, ignore_eos=True).json()["usage"] for i in range(4)
    ]
    server.idle()
    last = metrics(server)
    gained = {k: v - first.get(k, 0) for k, v in last.items()}
    assert total(gained, "prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages)
    assert total(gained, "generation_tokens_total") == sum(u["completion_tokens"] for u in usages)
    assert total(gained, "request_success_total") == 4
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert total(gained, f"{name}_count") == 4
    assert total(gained, "inter_token_latency_seconds_count") == sum(u["completion_tokens"] - 1 for u in usages)
    assert total(last, "compile_events_total") == 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert total(last, name) == 0


def test_gauges_under_aborts(server: Server) -> None:
    """Counters never fall and gauges never go below zero."""
    seen = [metrics(server)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        tasks = [pool.submit(leave, server, {**LONG, "max_tokens": 60}, 0.05 if i % 2 else 0.5) for i in range(40)]
        while not all(t.done() for t in tasks):
            seen.append(metrics(server))
            time.sleep(0.05)
    server.idle()
    seen.append(metrics(server))
    for before, after in itertools.pairwise(seen):
        for name, value in after.items():
            assert value >= 0
            if name.split("{")[0].endswith(("_total", "_count", "_bucket")):
                assert value >= before.get(name, 0), name
    assert total(seen[-1], "num_requests_running") == 0


def test_a_full_queue(start: Start) -> None:
    """What exceeds the queue gets 429 and may come again; what was accepted is answered."""
    server = start("--max-num-seqs", "1", "--max-waiting", "2").ready()
    slow(server)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(server.complete, max_tokens=100, ignore_eos=True) for _ in range(8)]
        time.sleep(0.5)
        go_on(server)
        answers = [t.result() for t in tasks]
    refused = [a for a in answers if a.status_code != 200]
    assert 1 <= len(refused) <= 6
    assert {(a.status_code, a.json()["error"]["code"]) for a in refused} == {(429, "queue_full")}
    assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
    server.idle()
    assert server.complete().status_code == 200


def test_prefix_of_metrics(start: Start) -> None:
    server = start("--metrics-prefix", "vllm").ready()
    names = {line.split("{")[0] for line in server.get("/metrics").text.splitlines() if not line.startswith("#")}
    assert "vllm:num_requests_running" in names
    assert all(n.startswith("vllm:") for n in names)


def test_the_engine_process_logs_what_the_server_does(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of rooms come before the option, in both processes."""
    monkeypatch.setenv("INFERIR_LOG", "debug,runtime=info")
    server = start("--log-level", "error").ready()
    lines = [line for line in server.lines() if line.startswith("inferir: ")]
    assert {line.split(": ")[1] for line in lines} == {"info"}
    assert {line.split(": ")[2] for line in lines} == {"runtime"}
    assert "checked and mapped in" in lines[0]


def test_many_idle_connections(server: Server) -> None:
    """Clients that send their headers slowly do not keep others from being answered."""
    address = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection((address[0], int(address[1]))))
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost:")
        assert server.get("/health").status_code == 200


def test_a_large_header(server: Server) -> None:
    with contextlib.suppress(httpx.TransportError):
        assert server.get("/health", headers={"x": "y" * (10 << 20)}).status_code in (400, 431)
    assert server.get("/health").status_code == 200
