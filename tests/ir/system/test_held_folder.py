"""Private folders: they go with their maker, and nothing else ever goes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.system import held_folder
from inferir.ir.system.held_folder import (
    LOCK,
    HeldFolder,
    abandoned_names,
    make_held,
    make_scratch,
    remove_abandoned,
    scratch_folder,
)

HOLD = """
import sys, time
from pathlib import Path
from inferir.ir.system.held_folder import make_scratch
folder = make_scratch("test", Path(sys.argv[1]))
folder.subfolder("inner")
(folder.path / "inner" / "half").write_bytes(b"half")
print(folder.path, flush=True)
time.sleep(600)
"""


def sweep(root: Path, prefix: str = "inferir-test") -> int:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        return remove_abandoned(descriptor, prefix)
    finally:
        os.close(descriptor)


def held(root: Path) -> HeldFolder:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        return make_held(descriptor, root, "inferir-test")
    finally:
        os.close(descriptor)


def abandoned(root: Path) -> Path:
    """A folder as a killed process leaves it."""
    folder = held(root)
    folder.subfolder("inner")
    (folder.path / "inner" / "half").write_bytes(b"half")
    folder.abandon()
    return folder.path


def test_a_folder_is_private_and_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = held(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    deep = folder.subfolder("a") / "b"
    deep.mkdir()
    (deep / "file").touch()
    (deep / "link").symlink_to(outside)
    os.mkfifo(deep / "fifo")
    folder.remove()
    folder.remove()
    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(outside) == ["kept"]


def test_a_folder_stays_while_its_process_lives_and_goes_after_it_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        os.utime(folder, (1, 1))
        assert sweep(tmp_path) == 0
        assert (folder / "inner" / "half").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert sweep(tmp_path, "inferir-other") == 0
    assert folder.exists()
    assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == []


def _without_mark(path: Path) -> None:
    path.mkdir()
    (path / LOCK).write_bytes(b"")


def _other_content(path: Path) -> None:
    path.mkdir()
    (path / "lock.new").write_bytes(b"somebody's lock")


def _link_for_a_mark(path: Path) -> None:
    path.mkdir()
    mark = abandoned(path.parent.parent / "elsewhere") / LOCK
    (path / LOCK).symlink_to(mark)


def _fifo_for_a_mark(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / LOCK)


def _link(path: Path) -> None:
    path.symlink_to(abandoned(path.parent.parent / "elsewhere"))


def _odd_name(path: Path) -> None:
    abandoned(path.parent).rename(path.with_name("inferir-test-mine"))


@pytest.mark.parametrize(
    "make", [_without_mark, _other_content, _link_for_a_mark, _fifo_for_a_mark, _link, _odd_name, Path.touch]
)
def test_what_is_not_provably_left_behind_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    make(root / "inferir-test-0123456789ab")
    for path in root.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    before = sorted(tmp_path.rglob("*"))
    assert sweep(root) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned(tmp_path)
    here = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: here + 1)
    assert sweep(tmp_path) == 0
    monkeypatch.undo()
    assert sweep(tmp_path) == 1


def test_a_folder_in_its_place_is_not_removed(tmp_path: Path) -> None:
    """Its name was given to another folder, by somebody who may write to the folder above."""
    folder = held(tmp_path)
    folder.path.rename(tmp_path / "moved")
    folder.path.mkdir()
    (folder.path / "precious").touch()
    folder.remove()
    assert (folder.path / "precious").exists()
    assert os.listdir(tmp_path / "moved") == []


def test_what_is_reached_by_the_address_is_the_folder_itself(tmp_path: Path) -> None:
    folder = held(tmp_path)
    folder.path.rename(tmp_path / "moved")
    Path(folder.address, "file").write_text("x")
    assert (tmp_path / "moved" / "file").read_text() == "x"
    folder.remove()


def test_without_locks_a_folder_never_counts_as_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", unsupported)
        folder = held(tmp_path)
        assert sweep(tmp_path) == 0
    assert sweep(tmp_path) == 0  # where locks work again, or for a process for which they do
    assert folder.path.exists()
    folder.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("at", ["open", "flock", "write", "rename"])
def test_what_was_killed_before_its_mark_is_removed(tmp_path: Path, at: str) -> None:
    """A child that stops, at every call on the way to the mark, as one does that is killed there."""
    child = os.fork()
    if child == 0:
        module = held_folder.fcntl if at == "flock" else os
        real = getattr(module, at)

        def stop(*args: Any, **options: Any) -> Any:
            return (
                os._exit(0) if at in ("flock", "write", "rename") or args[0] == "lock.new" else real(*args, **options)
            )

        setattr(module, at, stop)
        held(tmp_path)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    assert os.listdir(left) == ([] if at == "open" else ["lock.new"])
    assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("at", ["open", "flock", "rename"])
def test_a_maker_whose_folder_was_taken_for_abandoned_makes_another(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = held_folder.fcntl if at == "flock" else os
    real, taken = getattr(module, at), []

    def late(*args: Any, **options: Any) -> Any:
        if not taken and (at != "open" or args[0] == "lock.new"):
            taken.append(sorted(path.name for path in tmp_path.iterdir()))
            if at == "rename":  # before the lock, but only noticed when the mark gets its name
                shutil.rmtree(tmp_path / taken[0][0])
            else:
                assert sweep(tmp_path) == 1
        return real(*args, **options)

    monkeypatch.setattr(module, at, late)
    folder = held(tmp_path)
    assert taken != []
    assert [path.name for path in tmp_path.iterdir()] == [folder.path.name] != taken[0]
    folder.remove()


@pytest.mark.parametrize("name", ["open", "write", "rename"])
def test_a_folder_that_cannot_be_marked_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, name)

    def full(first: object, *rest: object, **options: object) -> object:
        if name == "open" and first != "lock.new":
            return real(first, *rest, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    descriptor = os.open(tmp_path, os.O_RDONLY)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(OSError, match="No space"):
            make_held(descriptor, tmp_path, "inferir-test")
    os.close(descriptor)
    assert os.listdir(tmp_path) == []


def test_scratch_folders_are_in_tmpdir_and_the_first_removes_abandoned_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(held_folder, "_swept", set())
    left = abandoned(tmp_path)
    with scratch_folder("other"):
        assert left.exists()
    with scratch_folder("test") as folder:
        assert folder.path.parent == tmp_path
        assert not left.exists()
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_removed_now_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a network file system keeps, because a process has it open."""
    folder, unlink = held(tmp_path), os.unlink
    for name in ("a", "busy", "z"):
        (folder.subfolder(f"in-{name}") / name).touch()

    def busy(name: str, **options: Any) -> None:
        if name == "busy":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", busy)
        folder.remove()
    assert sorted(os.listdir(folder.path)) == ["in-busy", LOCK]
    assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        make_scratch("test", tmp_path / "nowhere")


def test_descriptors_do_not_pile_up(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        held(tmp_path).remove()
        abandoned(tmp_path)
        sweep(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_reported_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(held_folder.os, "write", full)
    with pytest.raises(OSError, match="No space left") as raised:
        held(tmp_path)
    assert raised.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_looking_for_abandoned_folders_removes_none(tmp_path: Path) -> None:
    """What is named is exactly what the next sweep removes."""
    gone, kept = abandoned(tmp_path), held(tmp_path)
    empty = tmp_path / "inferir-test-0123456789ab"
    empty.mkdir()
    (tmp_path / "inferir-test-other").mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    names = abandoned_names(descriptor, "inferir-test")
    os.close(descriptor)
    assert names == sorted([gone.name, empty.name])
    assert all((tmp_path / name / "inner" / "half").exists() for name in names if name == gone.name)
    assert sweep(tmp_path) == len(names)
    assert kept.path.exists()
    kept.remove()
