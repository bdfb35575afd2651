"""Server processes of the serving comparisons: inferir, llama.cpp's `llama-server` and `vllm serve`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from benchmarks.peers import Peer
from inferir.ir.system.child import before_exec

KINDS = ("inferir", "llama_cpp", "vllm")
MODEL = "m"  # the name under which every server serves
POLL_SECONDS = 0.005
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a server must have room for. slots: requests at once, of `context` tokens each in llama.cpp."""

    slots: int = 32
    context: int = 1024
    dtype: str = "bfloat16"


def command(peer: Peer, port: int, room: Room) -> list[str]:
    """How a server is started. Each gets 2 GiB for its cache, but llama.cpp exactly what its slots need."""
    at = ["--host", "127.0.0.1", "--port", str(port)]
    if peer.kind == "inferir":
        start = [peer.python, "-P", "-c", "from inferir.cli.main import main; main()", "serve", peer.model]
        return [*start, *at, "--served-model-name", MODEL, "--kv-cache-memory", "2GiB", "--log-level", "warning"]
    if peer.kind == "llama_cpp":
        threads = str(len(os.sched_getaffinity(0)))
        size = ["-np", str(room.slots), "-c", str(room.slots * room.context), "-t", threads, "-tb", threads]
        return [str(Path(peer.bin) / "llama-server"), "-m", peer.model, *at, "--alias", MODEL, *size]
    size = ["--max-num-seqs", str(max(64, room.slots)), "--max-model-len", str(max(2048, room.context))]
    start = [peer.python, "-m", "vllm.entrypoints.cli.main", "serve", peer.model]
    return [*start, *at, "--served-model-name", MODEL, "--dtype", room.dtype, *size]


def environment() -> dict[str, str]:
    more = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    return {**more, "HF_HUB_OFFLINE": "1", **os.environ}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server in processes of its own, on a free port. `begin` is when its first process was started."""

    def __init__(self, peer: Peer, room: Room, log: Path) -> None:
        self.name = peer.name
        self.log = log
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._ready_path = "/ready" if peer.kind == "inferir" else "/health"
        line = command(peer, port, room)
        with log.open("w", encoding="utf-8") as out:
            self.begin = time.perf_counter()
            self.process = subprocess.Popen(
                line, env=environment(), stdout=out, stderr=subprocess.STDOUT, text=True, preexec_fn=before_exec()
            )

    def wait_ready(self, timeout: float) -> float:
        """Wait until it says that it is ready. Returns the seconds since its start; exits if it ended or is late."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < timeout and self.process.poll() is None:
            with (
                contextlib.suppress(OSError, urllib.error.URLError),
                _OPENER.open(self.url + self._ready_path, timeout=timeout) as answer,
            ):
                if answer.status == 200:
                    return time.perf_counter() - self.begin
            time.sleep(POLL_SECONDS)
        end = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise SystemExit(f"{end}\n{self.name}: not ready; all it said is in {self.log}")

    def answer(self, timeout: float = 60.0) -> float:
        """Ask for one token. Returns the seconds from the server's start to the answer."""
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with _OPENER.open(request, timeout=timeout) as answer:
            json.load(answer)["choices"][0]["text"]
        return time.perf_counter() - self.begin

    def pause(self) -> None:
        processes.pause(self.process.pid)

    def resume(self) -> None:
        """Let it run, and wait until it answers again."""
        processes.resume(self.process.pid)
        self.wait_ready(60.0)

    def close(self) -> None:
        processes.end(self.process)


@contextlib.contextmanager
def served(peers: Sequence[Peer], room: Room, folder: Path, timeout: float) -> Iterator[list[ServerProcess]]:
    """Servers, all paused; they end with the block. Their logs go into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        servers = []
        for peer in peers:
            server = ServerProcess(peer, room, folder / f"{peer.name}.log")
            stack.callback(server.close)
            seconds = server.wait_ready(timeout)
            server.answer()
            print(f"{server.name}: ready after {seconds:.2f} s", file=sys.stderr)
            server.pause()
            servers.append(server)
        yield servers
