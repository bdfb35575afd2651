"""Folders of sockets: private, removed when their server was killed, and never while it runs."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from serving import COMMAND, OPTIONS

from inferir.server.socket_folder import MIN_AGE, make_socket_folder, remove_stale

HOLD = """
import os, sys, time, tempfile
tempfile.tempdir = sys.argv[1]
from inferir.server.socket_folder import make_socket_folder
print(make_socket_folder(), flush=True)
time.sleep(600)
"""


def old(folder: Path) -> None:
    long_ago = time.time() - 10 * MIN_AGE
    os.utime(folder, (long_ago, long_ago))


def test_a_folder_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        folder = Path(holder.stdout.readline().strip())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "engine").touch()
        old(folder)
        remove_stale(tmp_path)
        assert folder.exists()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    old(folder)
    remove_stale(tmp_path)
    assert not folder.exists()


def test_what_stays(tmp_path: Path) -> None:
    """New folders, folders with other files, links, and what is no folder."""
    for name in ("inferir-new", "inferir-work", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "inferir-work" / "result").touch()
    (tmp_path / "inferir-file").touch()
    (tmp_path / "inferir-link").symlink_to(tmp_path / "other")
    for name in ("inferir-work", "inferir-file", "other"):
        old(tmp_path / name)
    names = {p.name for p in tmp_path.iterdir()}
    remove_stale(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == names
    old(tmp_path / "inferir-new")
    remove_stale(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == names - {"inferir-new"}


def test_descriptors_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = make_socket_folder()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        (first / "lock").unlink()
        first.rmdir()
        first = make_socket_folder()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_killed_server_leaves_nothing_for_long(tiny_artifact: Path, tmp_path: Path) -> None:
    """It is killed while its engine loads, when the folder is still there; the next server removes it."""
    place = tmp_path / "tmp"
    place.mkdir()
    command = [*COMMAND, str(tiny_artifact), "--port", "0", *OPTIONS]
    environment = {**os.environ, "TMPDIR": str(place)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not any(place.glob("inferir-*/engine")):
            assert time.monotonic() < end
            time.sleep(0.005)

    killed = start()
    wait()
    killed.kill()
    killed.wait()
    (left,) = place.glob("inferir-*")
    old(left)
    (left / "engine").unlink()
    old(left)
    following = start()
    try:
        wait()
        assert not left.exists()
    finally:
        following.send_signal(signal.SIGTERM)
        following.wait(30)
    assert not any(place.glob("inferir-*"))
