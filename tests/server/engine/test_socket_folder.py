"""Folders of sockets: private, removed when their server was killed, and never while it runs."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import COMMAND, OPTIONS

from inferir.server.engine.socket_folder import make_socket_folder


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
    """Old and empty ones, too: whose they are, the name does not tell."""
    names = {"inferir-abcd1234", "inferir-trace-0123456789ab", "inferir-server-0123456789ab"}
    for name in names:
        (short_folder / name).mkdir()
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
