"""A server in a process of its own: it starts, is ready, answers a completion, and ends in an orderly way."""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferir.doctor.finding import Finding, failure
from inferir.ir.errors import EngineError
from inferir.ir.system.child import before_exec
from inferir.ir.system.quantities import seconds

LAYER = "server"
READY_SECONDS = 60.0
END_SECONDS = 15.0
_LISTENING = "listening on "
_ADVICE = "start it by hand: inferir serve ART; docs/troubleshooting.md says more"


def check_server(artifact: Path, port: int = 0) -> Iterator[Finding]:
    """Serve `artifact` on a port of 127.0.0.1 (0: a free one). The process has ended when this is done."""
    command = [sys.executable, "-P", "-m", "inferir", "serve", str(artifact), "--port", str(port), "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--log-level", "error", "--max-num-seqs", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=before_exec(),
    )
    try:
        yield from _talk(process)
    except (OSError, http.client.HTTPException, ValueError, EngineError) as error:
        yield failure(LAYER, "answers", _said(process) or error, _ADVICE)
        return
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _talk(process: subprocess.Popen[str]) -> Iterator[Finding]:
    start = time.monotonic()
    address = _address(process)
    while (status := _request(address, "GET", "/ready")[0]) != 200:
        if process.poll() is not None or time.monotonic() - start > READY_SECONDS:
            raise EngineError(f"/ready answers {status} after {time.monotonic() - start:.0f} s")
        time.sleep(0.05)
    yield Finding(LAYER, "starts", "ok", f"ready on {address} after {seconds(time.monotonic() - start)}")
    status, health = _request(address, "GET", "/health")
    if status != 200:
        raise EngineError(f"/health answers {status}: {health}")
    body = {"prompt": [1], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    status, answer = _request(address, "POST", "/v1/completions", body)
    if status != 200 or answer["usage"]["completion_tokens"] != 2:
        raise EngineError(f"/v1/completions answers {status}: {answer}")
    yield Finding(LAYER, "answers", "ok", "/health, /ready and a completion of 2 tokens")
    process.terminate()
    try:
        status = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        raise EngineError(f"the server has not ended {END_SECONDS:.0f} s after SIGTERM") from None
    if status:
        raise EngineError(f"the server ended with status {status} after SIGTERM")
    yield Finding(LAYER, "ends", "ok", "status 0 after SIGTERM")


def _address(process: subprocess.Popen[str]) -> str:
    """Where the server listens, as host:port. Raises `EngineError` if it ends or says nothing."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(READY_SECONDS) else ""
    if not line.startswith(_LISTENING):
        raise EngineError("the server does not say where it listens")
    return line.removeprefix(_LISTENING).strip().removeprefix("http://")


def _request(address: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=READY_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def _said(process: subprocess.Popen[str]) -> Exception | None:
    """The error that the server itself reported, once it has ended."""
    assert process.stderr is not None
    if process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
    if process.poll() is None:
        process.kill()
    lines = process.stderr.read().splitlines()
    line = next((x for x in lines if x.startswith("inferir: error: ")), None)
    return None if line is None else EngineError(line.removeprefix("inferir: error: "))
