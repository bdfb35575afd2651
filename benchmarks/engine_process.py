"""Engine processes of the offline comparisons: started one after another, paused while another one is measured."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.peers import Peer
from inferir.ir.system.child import before_exec

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "inferir": "inferir_engine",
    "hf": "hf_engine",
    "hf_compile": "hf_engine",
    "llama_cpp": "llama_cpp_engine",
    "openvino": "openvino_engine",
    "vllm": "vllm_engine",
    "vllm_load": "vllm_load",
}


class EngineProcess:
    """An engine behind the line protocol. `ready`: seconds from its start to its first answer."""

    def __init__(self, peer: Peer, options: dict[str, Any], log: Path) -> None:
        self.name = peer.name
        self.log = log
        options = {**options, "model": peer.model, "bin": peer.bin, "compile": peer.kind == "hf_compile"}
        command = [peer.python, "-m", f"benchmarks.engines.{MODULES[peer.kind]}", json.dumps(options)]
        with log.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=before_exec(),
            )
        try:
            start = self._read()
        except BaseException:
            self.close()
            raise
        self.ready = float(start["ready"])
        self.version = str(start["version"])

    def measure(self, work: dict[str, Any]) -> float:
        """Tokens per second."""
        answer = self.ask(work)
        return float(answer["tokens"] / answer["seconds"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a line and read the answer. Exits with the end of the engine's log if it dies."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        return self._read()

    def pause(self) -> None:
        processes.pause(self.process.pid)

    def resume(self) -> None:
        processes.resume(self.process.pid)

    def close(self) -> None:
        self.resume()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(processes.END_SECONDS)
        processes.end(self.process, signal.SIGTERM)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            end = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise SystemExit(f"{end}\n{self.name}: the engine process ended; all it said is in {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def started(peers: Sequence[Peer], options: dict[str, Any], folder: Path) -> Iterator[list[EngineProcess]]:
    """Engines, all paused; they end with the block. Their logs go into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        engines = []
        for peer in peers:
            engine = EngineProcess(peer, options, folder / f"{peer.name}.log")
            stack.callback(engine.close)
            print(f"{engine.name}: {engine.version}, ready after {engine.ready:.2f} s", file=sys.stderr)
            engine.pause()
            engines.append(engine)
        yield engines
