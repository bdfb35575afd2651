"""A file is replaced as a whole, or stays as it was."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.system.atomic_file import replace_file

KILLED = """
import os, signal, sys
from pathlib import Path
from inferir.ir.system import atomic_file
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
atomic_file.replace_file(Path(sys.argv[1]), b"new")
"""


def test_a_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for raw in (b"first", b"second, longer", b""):
        replace_file(file, raw)
        assert file.read_bytes() == raw
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.json"
    replace_file(file, b"old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    replace_file(file, b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_threads_of_one_process_do_not_share_a_name(tmp_path: Path) -> None:
    file, raw = tmp_path / "x.json", [bytes([i]) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=replace_file, args=(file, r)) for r in raw]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_bytes() in raw
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "a" / "target", tmp_path / "link"
    target.parent.mkdir()
    for raw in (b"first", b"second"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        replace_file(link, raw)
        assert link.is_symlink()
        assert target.read_bytes() == raw
    assert list(target.parent.iterdir()) == [target]


def test_a_device_or_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"x" * 200_000)
    reader.join()
    assert read == [b"x" * 200_000]
    assert pipe.is_fifo()
    replace_file(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "x", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_name_of_the_longest_length_works(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 255)
    replace_file(file, b"x")
    assert file.read_bytes() == b"x"
