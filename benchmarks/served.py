"""A server process under test: starting it, and what its processes hold."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from inferir.ir.system.child import before_exec

READY_SECONDS = 120.0
IDLE_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass(frozen=True)
class Footprint:
    """What a process holds. memory: bytes that no file backs, swapped out or not."""

    memory: int
    files: int
    threads: int

    @staticmethod
    def of(pid: int) -> Footprint:
        status = Path(f"/proc/{pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        memory = sum(int(values[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))
        return Footprint(memory, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(values["Threads"]))


class Served:
    """`inferir serve` in a process of its own, on a free port. A context manager; the log is kept until it ends."""

    def __init__(self, artifact: str, *options: str, name: str = "m") -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="inferir-serve-")
        self.log = Path(self.folder.name) / "log"
        command = [sys.executable, "-P", "-c", "from inferir.cli.main import main; main()", "serve", artifact]
        command += ["--port", "0", "--served-model-name", name, "--log-level", "warning", *options]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, preexec_fn=before_exec())
        try:
            self.url = self._wait_line("listening on ")
            self._wait_line("ready after ")
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def engine_pid(self) -> int:
        """The engine process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            if b"inferir.server.engine.engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise RuntimeError(f"the server has no engine process\n{self.output()}")

    def footprints(self) -> dict[str, Footprint]:
        """Of the front process and of the engine process."""
        return {"front": Footprint.of(self.process.pid), "engine": Footprint.of(self.engine_pid())}

    def engine_paused(self) -> bool:
        """Whether somebody has stopped the engine process, as a shell or a debugger does."""
        stat = Path(f"/proc/{self.engine_pid()}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] in "Tt"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by their names, without prefix."""
        out: dict[str, float] = {}
        for line in self.get("/metrics").text.splitlines():
            if not line.startswith("#") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                out[name.split("{")[0].removeprefix("inferir_")] = float(value)
        return out

    def busy(self, seconds: float = 2.0) -> dict[str, float]:
        """Gauges that are not back at 0 within `seconds`."""
        end = time.monotonic() + seconds
        while True:
            metrics = self.metrics()
            found = {name: metrics[name] for name in IDLE_GAUGES if metrics[name]}
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.05)

    def stop(self) -> int:
        """End it as a service manager would; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.folder.cleanup()

    def _wait_line(self, start: str) -> str:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.output().splitlines():
                if line.startswith(start):
                    return line.removeprefix(start)
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start\n{self.output()}")


def table(rows: list[tuple[str, Any]]) -> str:
    """Two aligned columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
