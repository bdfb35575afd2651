"""A real server process, for tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

SECONDS = 60.0
"""Ends a test that hangs; nothing is expected to take so long."""
COMMAND = [sys.executable, "-P", "-c", "from inferir.cli.main import main; main()", "serve"]
OPTIONS = ("--threads", "1", "--kv-cache-memory", "4MiB", "--served-model-name", "tiny")


class Server:
    """A running `inferir serve`; its output goes to a file. python: the interpreter, if not that of `COMMAND`."""

    def __init__(self, artifact: Path, log: Path, *options: str, python: str = "") -> None:
        self.log = log
        with log.open("wb") as out:
            start = [python, *COMMAND[1:]] if python else COMMAND
            command = [*start, str(artifact), "--port", "0", *OPTIONS, *options]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        line = self.wait(lambda: next((x for x in self.lines() if x.startswith("listening on ")), None))
        self.url: str = line.removeprefix("listening on ")
        self.http = httpx.Client(base_url=self.url, timeout=SECONDS)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait(self, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """The first true value of `condition`."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, f"nothing happened\n{self.log.read_text()}"
            time.sleep(0.02)
        return value

    def ready(self) -> Server:
        self.wait(lambda: self.get("/ready").status_code == 200)
        return self

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "hi", "max_tokens": 4, "temperature": 0, **body})

    def talk(self, *messages: Any, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0, **body})

    def stats(self) -> dict[str, Any]:
        out: dict[str, Any] = self.get("/stats").json()
        return out

    def idle(self, seconds: float = SECONDS) -> None:
        """Wait until nothing runs, waits or holds memory."""
        self.wait(lambda: all(self.stats()[k] == 0 for k in ("running", "waiting", "kv_usage")), seconds)

    def engine_pid(self) -> int:
        (pid,) = self.children()
        return pid

    def children(self) -> list[int]:
        """Processes that the server has started: its engine, or none while another is about to be started."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def stop(self, number: int = signal.SIGTERM, seconds: float = SECONDS) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


Start = Callable[..., Server]


def prompt(server: Server, *messages: Any, **body: Any) -> str:
    """The prompt text of a conversation."""
    tokens = server.post("/tokenize", {"messages": messages, **body}).json()["tokens"]
    text: str = server.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    return text


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
