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
        with _started([_FIRST_TOKEN, str(artifact), json.dumps(given)]) as program:
            times["llm_first_token"].append(_wait_line(*program, "token", timeout))
        with _started([_CLI, "serve", str(artifact), "--port", "0", *options]) as program:
            times["serve_listening"].append(_wait_line(*program, "listening on ", timeout))
            times["serve_ready"].append(_wait_line(*program, "ready ", timeout))
    return {"repetitions": repetitions, "seconds": {k: distribution(v) for k, v in times.items()}}, times


@contextlib.contextmanager
def _started(program: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[str], float]]:
    """A running Python program, the file that takes its errors, and when it was started. It is ended with the block."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        begin = time.perf_counter()
        command = [sys.executable, "-P", "-c", *program]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,  # so that what has come is what can be waited for
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


def _wait_line(process: subprocess.Popen[bytes], errors: IO[str], begin: float, start: str, timeout: float) -> float:
    """Seconds since `begin` at which a program printed a line that begins with `start`. Raises `InferirError`."""
    assert process.stdout is not None
    while select.select([process.stdout], [], [], max(0.0, begin + timeout - time.perf_counter()))[0]:
        line = process.stdout.readline().decode("utf-8", "replace")
        if line.startswith(start):
            return time.perf_counter() - begin
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            errors.seek(0)
            said = [text for text in errors.read().splitlines() if text.strip()]
            raise InferirError(said[-1].removeprefix("inferir: error: ") if said else f"status {process.returncode}")
    raise InferirError(f"a process said nothing for {timeout:g} s")
