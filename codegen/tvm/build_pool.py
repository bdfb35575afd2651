"""Building many modules in parallel worker processes.

A worker is `python -m inferir.codegen.tvm.build_pool`: it imports TVM once (about a second, without torch, which TVM
would load if it could) and builds one module after another. Requests and answers are a line of JSON each; an answer
with a module is followed by its bytes.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import inferir
from inferir.ir.errors import CodegenError
from inferir.ir.target import Target

Progress = Callable[[int, int], None]
"""`progress(built, total)` after each module, called from other threads than the caller's, one at a time."""


@dataclass(frozen=True)
class BuildJob:
    """One module to build; `name` is for messages."""

    name: str
    source: str
    target: Target


def build_many(jobs: Sequence[BuildJob], workers: int = 0, progress: Progress | None = None) -> list[bytes]:
    """Build all jobs and return their shared objects in order.

    `workers` processes at most (0: one per CPU this process may use). Raises the first `CodegenError`, which names the
    job; the other jobs are given up then. Interrupted, it ends all processes at once.
    """
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    results: list[bytes | None] = [None] * len(jobs)
    errors: list[CodegenError] = []
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in sorted(range(len(jobs)), key=lambda i: -len(jobs[i].source)):
        waiting.put(index)
    lock = threading.Lock()
    started: list[_Worker] = []

    def serve() -> None:
        try:
            with _Worker() as worker:
                started.append(worker)
                while not errors:
                    try:
                        index = waiting.get_nowait()
                    except queue.Empty:
                        return
                    results[index] = worker.build(jobs[index])
                    with lock:
                        if progress is not None:
                            progress(sum(r is not None for r in results), len(jobs))
        except CodegenError as error:
            errors.append(error)
        except Exception as error:
            errors.append(CodegenError(f"building kernels failed: {error}"))

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        errors.append(CodegenError("building kernels was interrupted"))
        for worker in started:
            worker.kill()
        raise
    if errors:
        raise errors[0]
    return [r for r in results if r is not None]


class _Worker:
    """A worker process, from the parent's side."""

    def __enter__(self) -> _Worker:
        root = str(Path(next(iter(inferir.__path__))).parent)
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferir.codegen.tvm.build_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            process_group=0,  # Ctrl-C is for this process alone, which ends its workers then
        )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        if exception[0] is not None:
            self.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()

    def build(self, job: BuildJob) -> bytes:
        """Send a job and wait for its module."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"source": job.source, "target": job.target.record()}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer = json.loads(line) if line else None
            if answer is not None and "error" not in answer:
                return self._process.stdout.read(int(answer["bytes"]))
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise CodegenError(f"{job.name}: the build process ended with status {self._process.wait()}")
        raise CodegenError(f"{job.name}: {answer['error']}")


def _serve() -> None:
    """The worker's side: build modules until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not mix with answers
    # TVM imports torch where it finds it, only to exchange tensors with it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    from inferir.codegen.tvm.build import build_module

    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            module = build_module(request["source"], Target.from_record(request["target"]))
        except CodegenError as error:
            answers.write(json.dumps({"error": str(error)}).encode() + b"\n")
        else:
            answers.write(json.dumps({"bytes": len(module)}).encode() + b"\n" + module)
        answers.flush()


if __name__ == "__main__":
    _serve()
