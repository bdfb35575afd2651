"""Whole folders or nothing: publishing, reading back, and what killed or competing writers leave."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferir.codegen import cache_files
from inferir.codegen.cache_files import discard, new_folder, read_entry, remove_stale
from inferir.codegen.cache_index import INDEX_NAME, FileRecord, Index

KILLED_WRITER = """
import sys, time
from pathlib import Path
from inferir.codegen.cache_files import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    folder.write("k.so", b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def _publish(root: Path, content: bytes = b"code", digest: str = "d1") -> Path:
    place = root / "kernel" / digest
    with new_folder(root / "incoming") as folder:
        folder.write("k.so", content)
        folder.write(INDEX_NAME, Index("kernel", digest, {"a": 1}, {"k.so": FileRecord.of(content)}).encode())
        assert folder.publish(place)
    return place


def test_published_entry_reads_back(tmp_path: Path) -> None:
    found = read_entry(_publish(tmp_path))
    assert found is not None
    assert found[1] == {"k.so": b"code"}
    assert os.listdir(tmp_path / "incoming") == []


def test_absent_entry_is_none(tmp_path: Path) -> None:
    assert read_entry(tmp_path / "kernel" / "d1") is None


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), new_folder(tmp_path / "incoming") as folder:  # noqa: PT012
        folder.write("k.so", b"half")
        folder.write("k.so", b"again")
    assert os.listdir(tmp_path / "incoming") == []


def test_the_first_publisher_wins(tmp_path: Path) -> None:
    place = _publish(tmp_path, b"first")
    with new_folder(tmp_path / "incoming") as folder:
        folder.write(INDEX_NAME, b"second")
        assert not folder.publish(place)
    found = read_entry(place)
    assert found is not None
    assert found[1] == {"k.so": b"first"}
    assert os.listdir(tmp_path / "incoming") == []


def test_an_entry_under_another_name_is_damaged(tmp_path: Path) -> None:
    place = _publish(tmp_path)
    moved = place.with_name("d2")
    place.rename(moved)
    with pytest.raises(cache_files.DamagedEntryError, match=r"index\.json: describes the kernel entry d1"):
        read_entry(moved)


def test_entry_replaced_while_being_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _publish(tmp_path, b"old code")
    read_at = cache_files._read_at

    def replace_then_read(path: Path, handle: int, name: str) -> bytes:
        if name == "k.so":
            monkeypatch.undo()
            discard(place, tmp_path / "incoming")
            _publish(tmp_path, b"new code")
        return read_at(path, handle, name)

    monkeypatch.setattr(cache_files, "_read_at", replace_then_read)
    found = read_entry(place)
    assert found is not None
    assert found[1] == {"k.so": b"new code"}


def test_discard_removes_the_entry_and_tolerates_its_absence(tmp_path: Path) -> None:
    place = _publish(tmp_path)
    discard(place, tmp_path / "incoming")
    discard(place, tmp_path / "incoming")
    assert read_entry(place) is None
    assert os.listdir(tmp_path / "incoming") == []


def test_discard_where_folders_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _publish(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", refuse)
    discard(place, tmp_path / "incoming")
    assert not place.exists()


def test_a_killed_writers_folder_is_removed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(incoming)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        assert remove_stale(incoming) == 0
        assert len(os.listdir(incoming)) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert remove_stale(incoming) == 1
    assert os.listdir(incoming) == []


def test_without_locks_only_old_folders_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incoming = tmp_path / "incoming"
    for name in ("new", "old"):
        (incoming / name).mkdir(parents=True)
        (incoming / name / "k.so").write_bytes(b"half")
    yesterday = time.time() - 86400
    os.utime(incoming / "old", (yesterday, yesterday))

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert remove_stale(incoming) == 1
    assert os.listdir(incoming) == ["new"]
    _publish(tmp_path)


def test_remove_stale_without_a_folder(tmp_path: Path) -> None:
    assert remove_stale(tmp_path / "nowhere") == 0
