"""A server under odd streams, limits, folders and keys: it serves and ends with 0, or says in a line what is wrong."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from doors import Cell, run
from serving import COMMAND, OPTIONS, Server, Start

SMALL = ("--port", "0", *OPTIONS)


@contextlib.contextmanager
def serving(artifact: Path, path: Path, **options: Any) -> Iterator[httpx.Client]:
    """A client of a ready server at a Unix socket, which must then end with 0 when it is told to."""
    process = subprocess.Popen([*COMMAND, str(artifact), "--uds", str(path), *OPTIONS], **options)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://server", timeout=30) as client:
            end = time.monotonic() + 30
            status = 0
            while status != 200:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
                with contextlib.suppress(httpx.TransportError):
                    status = client.get("/ready").status_code
            yield client
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["closed", "full", "left"])
def test_nobody_reads_its_streams(tiny_artifact: Path, tmp_path: Path, kind: str) -> None:
    """It serves, drains, and its exit status tells no supervisor of a crash."""
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full, open(writing, "wb") as left:
        target = {"closed": None, "full": full, "left": left}[kind]

        def shut() -> None:
            for number in (0, 1, 2):
                os.close(number)

        shutting: Any = shut if kind == "closed" else None
        options = {"stdout": target, "stderr": target, "preexec_fn": shutting}
        with serving(tiny_artifact, tmp_path / "sock", **options) as client:
            answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4, "nonsense": 1})
            assert answer.status_code == 200


def test_a_path_of_any_bytes(tiny_artifact: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(tiny_artifact, tmp_path / os.fsdecode(b"a\xff\nb"))
    with serving(odd, tmp_path / "sock", stdout=subprocess.DEVNULL) as client:
        assert client.get("/v1/models").json()["data"][0]["root"].endswith("/a\\xff\nb")
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        assert "tiny" in client.get("/metrics").text


def test_a_temporary_folder_too_long_for_sockets(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = tmp_path / ("t" * 100)
    long.mkdir()
    with serving(tiny_artifact, Path("sock"), env={**os.environ, "TMPDIR": str(long)}) as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--api-key", ""), "would leave the server open"),
        (("--api-key", "good", "--api-key", "  "), "would leave the server open"),
        (("--api-key-file", "blanks"), "--api-key-file blanks: has no key"),
        (("--api-key-file", "bytes"), "--api-key-file bytes: is not text in UTF-8"),
        (("--api-key-file", "."), "--api-key-file .: Is a directory"),
        (("--chat-template", "bytes"), "--chat-template bytes: is not text in UTF-8"),
        (("--served-model-name", " "), "--served-model-name is empty"),
        (("--allowed-origin", ""), "--allowed-origin is empty"),
        (("--host", ""), "give 0.0.0.0 or :: for all interfaces"),
        (("--uds", ""), "--uds is empty"),
        (("--uds", "u" * 200), "--uds: cannot listen on"),
        (("--metrics-prefix", "a-b"), "--metrics-prefix"),
    ],
)
def test_options_that_leave_a_door_open(
    tiny_artifact: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    (tmp_path / "blanks").write_text("\ufeff\n \t\n")
    (tmp_path / "bytes").write_bytes(b"k\xff")
    out, _ = run(Cell(["serve", tiny_artifact, "--port", "0", *options], (1,), cwd=tmp_path, says=says))
    assert "ready" not in out


def test_keys(tiny_artifact: Path, tmp_path: Path, start: Start) -> None:
    (tmp_path / "keys").write_bytes("\ufeff fîle \r\n".encode())
    server = start("--api-key", " geheim ", "--api-key-file", str(tmp_path / "keys")).ready()

    def ask(*values: bytes) -> int:
        headers = [(b"Authorization", value) for value in values]
        return server.get("/v1/models", headers=headers).status_code

    for good in (b"Bearer geheim", b"bearer  geheim", "Bearer fîle".encode()):
        assert ask(good) == 200, good
    for bad in (b"Bearer", b"geheim", b"Bearer \xff", b"Basic geheim", b"Bearer file"):
        assert ask(bad) == 401, bad
    assert ask() == 401
    assert ask(b"Bearer geheim", b"Bearer geheim") == 401


@pytest.mark.parametrize(
    ("limits", "status", "says"),
    [
        ({resource.RLIMIT_NOFILE: 12}, (1,), "the limit of open files is 12, too few for a server"),
        ({resource.RLIMIT_AS: 4 << 30}, (0,), ""),
        ({resource.RLIMIT_DATA: 400 << 20}, (0,), ""),
        ({resource.RLIMIT_AS: 60 << 20}, (1,), ""),
    ],
    ids=["files", "address space", "data", "little"],
)
def test_limits(tiny_artifact: Path, limits: dict[int, int], status: tuple[int, ...], says: str) -> None:
    """The KV cache has its default size here."""
    cell = Cell(["serve", tiny_artifact, "--port", "0", "--threads", "1"], status, limits=limits, says=says)
    out, _ = run(cell, until_ready=5.0)
    assert ("listening" in out) == (status == (0,))


def test_a_cache_that_does_not_fit_names_the_option(tiny_artifact: Path) -> None:
    cell = Cell(
        ["serve", tiny_artifact, "--port", "0", "--kv-cache-memory", "1GiB", "--max-num-seqs", "8"],
        (0, 1),
        limits={resource.RLIMIT_AS: 1 << 30},
        says="--kv-cache-memory",
    )
    run(cell, until_ready=5.0)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_more_connections_than_files(tiny_artifact: Path, tmp_path: Path) -> None:
    """A few lines in the log, no busy loop, and a killed engine can be replaced meanwhile."""
    log = tmp_path / "log"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 512), hard))
    with pytest.MonkeyPatch.context() as patch:
        limited = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *COMMAND]
        patch.setattr("serving.COMMAND", limited)
        server = Server(tiny_artifact, log)
    try:
        server.ready()
        address = server.url.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            connections = [
                stack.enter_context(socket.create_connection((address[0], int(address[1])))) for _ in range(120)
            ]
            engine = server.engine_pid()
            before = cpu_seconds(server.process.pid)
            time.sleep(2)
            spent = cpu_seconds(server.process.pid) - before
            refused = 0
            for connection in connections:
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    refused += connection.recv(999).startswith(b"HTTP/1.1 503 ")
            assert refused >= 60
            assert spent < 1.0
            os.kill(engine, signal.SIGKILL)
            server.wait(lambda: "starting it again" in log.read_text())
            server.wait(lambda: set(server.children()) - {engine})
        server.wait(lambda: server.get("/ready").status_code == 200)
        assert server.complete().status_code == 200
        assert log.stat().st_size < 4000
        assert log.read_text().count("connections are refused: the limit of open files (ulimit -n) is reached") == 1
        assert "Traceback" not in log.read_text()
        assert server.stop() == 0
    finally:
        server.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_of_files_is_raised(tiny_artifact: Path, tmp_path: Path, start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # this process may hold many
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(80, highest + 40), hard))
    try:
        server = start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    line = next(x for x in Path(f"/proc/{server.process.pid}/limits").read_text().splitlines() if "open files" in x)
    assert line.split()[3] == line.split()[4]
