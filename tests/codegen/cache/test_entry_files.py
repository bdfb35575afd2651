"""Whole folders or nothing: publishing, reading back, and what killed or competing writers leave."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inferir.codegen.cache import entry_files as cache_files
from inferir.codegen.cache.entry_files import PREFIX, discard, new_folder, read_entry, with_entry
from inferir.codegen.cache.entry_index import INDEX_NAME, FileRecord, Index
from inferir.codegen.cache.trust import Folder, RefusedError, open_folder, open_root
from inferir.ir.system.held_folder import remove_abandoned

KILLED_WRITER = """
import sys, time
from pathlib import Path
from inferir.codegen.cache.entry_files import new_folder
from inferir.codegen.cache.trust import open_root
with open_root(Path(sys.argv[1]), create=True) as incoming, new_folder(incoming) as folder:
    folder.write("k.so", b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


@contextmanager
def _kind(root: Path) -> Iterator[Folder]:
    with open_root(root, create=True) as top, open_folder(top, "kernel", create=True) as folder:
        yield folder


@contextmanager
def _incoming(root: Path) -> Iterator[Folder]:
    with open_root(root, create=True) as top, open_folder(top, "incoming", create=True) as folder:
        yield folder


def _publish(root: Path, content: bytes = b"code", digest: str = "d1") -> Path:
    with _kind(root) as kind, _incoming(root) as incoming, new_folder(incoming) as folder:
        folder.write("k.so", content)
        folder.write(INDEX_NAME, Index("kernel", digest, {"a": 1}, {"k.so": FileRecord.of(content)}).encode())
        assert folder.publish(kind, digest)
    return root / "kernel" / digest


def _read(root: Path, digest: str = "d1") -> dict[str, bytes] | None:
    with _kind(root) as kind:
        return with_entry(kind, digest, read_entry)


def _discard(root: Path, digest: str = "d1") -> None:
    with _kind(root) as kind, _incoming(root) as incoming:
        discard(kind, digest, incoming)


def _remove_stale(incoming: Path) -> int:
    with open_root(incoming) as folder:
        return remove_abandoned(folder.descriptor, PREFIX)


def test_published_entry_reads_back(tmp_path: Path) -> None:
    _publish(tmp_path)
    assert _read(tmp_path) == {"k.so": b"code"}
    assert os.listdir(tmp_path / "incoming") == []


def test_absent_entry_is_none(tmp_path: Path) -> None:
    assert _read(tmp_path) is None


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), _incoming(tmp_path) as incoming, new_folder(incoming) as folder:  # noqa: PT012
        folder.write("k.so", b"half")
        folder.write("k.so", b"again")
    assert os.listdir(tmp_path / "incoming") == []


def test_the_first_publisher_wins(tmp_path: Path) -> None:
    _publish(tmp_path, b"first")
    with _kind(tmp_path) as kind, _incoming(tmp_path) as incoming, new_folder(incoming) as folder:
        folder.write(INDEX_NAME, b"second")
        assert not folder.publish(kind, "d1")
    assert _read(tmp_path) == {"k.so": b"first"}
    assert os.listdir(tmp_path / "incoming") == []


def test_an_entry_under_another_name_is_damaged(tmp_path: Path) -> None:
    place = _publish(tmp_path)
    place.rename(place.with_name("d2"))
    with pytest.raises(cache_files.DamagedEntryError, match=r"index\.json: describes the kernel entry d1"):
        _read(tmp_path, "d2")


@pytest.mark.parametrize("name", ["../../secret", "a/b", "/etc/passwd", "", ".hidden", INDEX_NAME])
def test_an_index_that_names_files_elsewhere_is_damaged(tmp_path: Path, name: str) -> None:
    place = _publish(tmp_path)
    (tmp_path / "secret").write_bytes(b"code")
    forged = Index("kernel", "d1", {"a": 1}, {name: FileRecord.of(b"code")})
    (place / INDEX_NAME).write_bytes(forged.encode())
    with pytest.raises(cache_files.DamagedEntryError, match="names a file that no entry has"):
        _read(tmp_path)


def test_entry_replaced_while_being_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(tmp_path, b"old code")
    read_at = cache_files._read_at

    def replace_then_read(place: Folder, name: str) -> bytes:
        if name == "k.so":
            monkeypatch.undo()
            _discard(tmp_path)
            _publish(tmp_path, b"new code")
        return read_at(place, name)

    monkeypatch.setattr(cache_files, "_read_at", replace_then_read)
    assert _read(tmp_path) == {"k.so": b"new code"}


def test_discard_removes_the_entry_and_tolerates_its_absence(tmp_path: Path) -> None:
    _publish(tmp_path)
    _discard(tmp_path)
    _discard(tmp_path)
    assert _read(tmp_path) is None
    assert os.listdir(tmp_path / "incoming") == []


def test_discard_where_folders_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, rename = _publish(tmp_path), os.rename

    def refuse(source: str, target: str, **folders: Any) -> None:
        if source == "d1":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", refuse)
    _discard(tmp_path)
    assert not place.exists()
    assert os.listdir(tmp_path / "incoming") == []


@pytest.mark.parametrize("foreign", ["folder", "link", "fifo"])
def test_an_entry_with_something_that_is_no_file_is_not_removed(tmp_path: Path, foreign: str) -> None:
    place, outside = _publish(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    match foreign:
        case "folder":
            (place / "x").mkdir()
        case "link":
            (place / "x").symlink_to(outside)
        case "fifo":
            os.mkfifo(place / "x")
    with pytest.raises(RefusedError, match=r"d1/x is (a link|not a file)"):
        _discard(tmp_path)
    assert _read(tmp_path) == {"k.so": b"code"}
    assert (outside / "kept").exists()


def test_a_killed_writers_folder_is_removed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(incoming)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        assert _remove_stale(incoming) == 0
        assert len(os.listdir(incoming)) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert _remove_stale(incoming) == 1
    assert os.listdir(incoming) == []


def test_without_locks_nothing_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incoming = tmp_path / "incoming"
    (incoming / "entry-0123456789ab").mkdir(parents=True)
    (incoming / "entry-0123456789ab" / "k.so").write_bytes(b"half")
    os.utime(incoming / "entry-0123456789ab", (1, 1))

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert _remove_stale(incoming) == 0
    _publish(tmp_path)
    assert os.listdir(incoming) == ["entry-0123456789ab"]
