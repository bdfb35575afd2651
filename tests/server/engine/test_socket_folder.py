"""Folders of sockets: private, removed when their server was killed, and never while it runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import COMMAND, OPTIONS

from inferir.ir.errors import EngineError
from inferir.server.engine.socket_folder import MAX_BYTES, make_socket_folder, socket_root


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder short enough for a socket below it, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_a_folder_is_private_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = make_socket_folder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert len(f"{folder.path.name}/engine") < 36  # of the 107 bytes that a socket's address has
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_other_commands_stay(tiny_artifact: Path, short_folder: Path) -> None:
    """Old ones, too: whose they are, the name does not tell. An empty one with the server's own would go."""
    names = {"inferir-abcd1234", "inferir-trace-0123456789ab", "inferir-server-0123456789ab"}
    for name in names:
        (short_folder / name).mkdir()
        (short_folder / name / "file").touch()
        os.utime(short_folder / name, (1, 1))
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    process = subprocess.Popen(
        [*COMMAND, str(tiny_artifact), "--port", "0", *OPTIONS], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = (process.stdout.readline() for _ in range(5))
    assert any(line.startswith("ready") for line in lines)
    assert {p.name for p in short_folder.iterdir()} == names
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert {p.name for p in short_folder.iterdir()} == names


def test_a_killed_server_leaves_nothing_for_long(tiny_artifact: Path, short_folder: Path) -> None:
    """It is killed while its engine loads, when the folder is still there; the next server removes it."""
    place = short_folder
    command = [*COMMAND, str(tiny_artifact), "--port", "0", *OPTIONS]
    environment = {**os.environ, "TMPDIR": str(place)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(condition: Callable[[], bool], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)

    killed = start()
    wait(lambda: any(place.glob("inferir-*/engine")))
    killed.kill()
    killed.wait()
    (left,) = place.glob("inferir-*")
    following = start()
    try:
        wait(lambda: not left.exists())
    finally:
        following.send_signal(signal.SIGTERM)
        following.wait(30)
    assert not any(place.glob("inferir-*"))


# --- where they are, whatever TMPDIR is -------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tempfile.mkdtemp(dir="/tmp")


def use(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", None)  # what an earlier call found


def test_the_usual_folder(monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    use(monkeypatch, short)
    assert socket_root(("/nowhere",)) == Path(short)
    Path(short).rmdir()


def test_folders_that_take_no_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: str) -> None:
    long = tmp_path / ("x" * MAX_BYTES)
    odd = tmp_path / os.fsdecode(b"t\xff")
    for folder in (long, odd):
        folder.mkdir()
        use(monkeypatch, str(folder))
        assert socket_root((short,)) == Path(short)
        with pytest.raises(EngineError, match=f"^TMPDIR: no socket can be made in .* at most {MAX_BYTES} bytes"):
            socket_root(("/nowhere", "/dev/null"))
    Path(short).rmdir()


def test_what_is_in_the_folder_fits_into_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest folder that is taken leaves room for the names of the private folder and of the socket in it."""
    top = tempfile.mkdtemp(dir="/tmp")
    folder = os.path.join(top, "y" * (MAX_BYTES - len(top) - 1))
    os.mkdir(folder)
    use(monkeypatch, folder)
    private = make_socket_folder()
    assert str(private.path).startswith(folder)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(private.path / "engine"))
    private.remove()
    shutil.rmtree(top)
