"""`inferir bench startup`: how long fresh processes take until they answer."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from inferir.cli.bench_metrics import distribution
from inferir.ir.errors import InferirError
from inferir.ir.system.child import before_exec

_FIRST_TOKEN = """
import json, sys
from inferir.api.llm import LLM, SamplingParams
with LLM(sys.argv[1], **json.loads(sys.argv[2])) as llm:
    llm.generate([[1]], SamplingParams(max_tokens=1, ignore_eos=True))
    print("token", flush=True)
"""
_CLI = "from inferir.cli.main import main; main()"


def startup(
    artifact: Path, *, repetitions: int, timeout: float, threads: int | None, kv_cache_memory: str | None
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Start processes one after the other. Returns the summary and the seconds of each kind of start."""
    engine = {"threads": threads, "kv_cache_memory": kv_cache_memory}
    given = {k: v for k, v in engine.items() if v is not None}
    options = [text for k, v in given.items() for text in (f"--{k.replace('_', '-')}", str(v))]
    times: dict[str, list[float]] = {"llm_first_token": [], "serve_listening": [], "serve_ready": []}
    for _ in range(repetitions):
        command = [_FIRST_TOKEN, str(artifact), json.dumps(given)]
        times["llm_first_token"].append(_first_token(command, timeout))
        listening, ready = _serve([_CLI, "serve", str(artifact), "--port", "0", *options], timeout)
        times["serve_listening"].append(listening)
        times["serve_ready"].append(ready)
    return {"repetitions": repetitions, "seconds": {k: distribution(v) for k, v in times.items()}}, times


@contextlib.contextmanager
def _started(program: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], IO[str], float]]:
    """A running Python program, the file that takes its errors, and when it was started. It is ended with the block."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        begin = time.perf_counter()
        command = [sys.executable, "-P", "-c", *program]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=before_exec(),
        )
        try:
            yield process, errors, begin
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _line(process: subprocess.Popen[str], errors: IO[str], start: str, timeout: float) -> str:
    """The next line of a program's output, which must begin with `start`. Raises `InferirError`."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], timeout)[0]:
        raise InferirError(f"a process said nothing for {timeout:g} s")
    line = process.stdout.readline()
    if not line.startswith(start):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        errors.seek(0)
        said = [text for text in (line, *errors.read().splitlines()) if text.strip()]
        why = said[-1].removeprefix("inferir: error: ") if said else f"status {process.returncode}"
        raise InferirError(why)
    return line


def _first_token(program: Sequence[str], timeout: float) -> float:
    """Seconds until a program has said that it has a token."""
    with _started(program) as (process, errors, begin):
        _line(process, errors, "token", timeout)
        return time.perf_counter() - begin


def _serve(program: Sequence[str], timeout: float) -> tuple[float, float]:
    """Seconds until a server listens, and until it is ready."""
    opener = build_opener(ProxyHandler({}))
    with _started(program) as (process, errors, begin):
        url = _line(process, errors, "listening on ", timeout).removeprefix("listening on ").strip()
        listening = time.perf_counter() - begin
        while time.perf_counter() - begin < timeout:
            if process.poll() is not None:
                errors.seek(0)
                raise InferirError(
                    f"the server ended: {(errors.read().strip().splitlines() or ['no reason given'])[-1]}"
                )
            with (
                contextlib.suppress(HTTPError, URLError, ConnectionError),
                opener.open(f"{url}/ready", timeout=timeout) as answer,
            ):
                if answer.status == 200:
                    return listening, time.perf_counter() - begin
            time.sleep(0.005)
        raise InferirError(f"the server was not ready after {timeout:g} s")
