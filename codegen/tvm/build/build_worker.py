"""A process that builds modules: `python -m inferir.codegen.tvm.build.build_worker`, and its parent's side.

It imports TVM once (about a second, without torch, which TVM would load if it could). Requests and answers are a line
of JSON each; an answer with a module is followed by its bytes. It ends when its input does, or its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import inferir
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.system import env
from inferir.ir.system.child import child_environment, die_with_parent


class WorkerDiedError(Exception):
    """The process ended before it answered; the text says how: "was ended by SIGKILL"."""


class Worker:
    """The parent's side. It must be started and used by one thread, which outlives it."""

    def __enter__(self) -> Worker:
        root = str(Path(next(iter(inferir.__path__))).parent)
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "inferir.codegen.tvm.build.build_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if env.debug() else self._said,
            env={**child_environment(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            process_group=0,  # Ctrl-C is for this process alone, which ends its workers then
        )
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self.kill()
        if self._process.stdin:
            with contextlib.suppress(OSError):  # what was still to be written to a process that is dead
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._said.close()

    def kill(self) -> None:
        self._process.kill()

    def build(self, name: str, source: str, target: Target) -> bytes:
        """Wait for a module. Raises `CodegenError` beginning with `name`, or `WorkerDiedError`."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = {"source": source, "target": target.record()}
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
            if line.endswith(b"\n"):
                answer = json.loads(line)
                if "error" in answer:
                    raise CodegenError(f"{name}: {answer['error']}")
                module = stdout.read(answer["bytes"])
                if len(module) == answer["bytes"]:
                    return module
        except BrokenPipeError:
            pass
        raise WorkerDiedError(_ending(self._process.wait()) + self._last_words())

    def _last_words(self) -> str:
        """What the process, or a library in it, printed last."""
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last}" if last else ""


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def serve() -> None:
    """The worker's side: build modules until the input ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not mix with answers
    # TVM imports torch where it finds it, only to exchange tensors with it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    from inferir.codegen.tvm.build.build_module import build_module

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
    serve()
