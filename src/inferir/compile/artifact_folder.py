"""The place of an artifact: its name shows the old one or the new one, whatever fails or is killed.

    PARENT/ART                                  the artifact
    PARENT/.inferir-artifact-6f3a0c91d2e4/new   the one being written, then the one that was replaced
                                         /old   the one that was replaced, where names cannot be exchanged

The new artifact is written in a private folder beside its place and synced; then the two change names in one step. File
systems that cannot exchange names need two renames: a process that is killed between them leaves no artifact under the
name, and the next compile into the same folder puts the old one back. Servers of the old artifact keep its files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferir.ir.contract.artifact import MANIFEST
from inferir.ir.errors import ArtifactError
from inferir.ir.system.atomic_file import sync_folder
from inferir.ir.system.held_folder import HeldFolder, make_held, remove_abandoned
from inferir.ir.system.rename import exchange, rename_new

_PREFIX = ".inferir-artifact"
_NEW, _OLD, _NAME = "new", "old", "name"
_TRIES = 100  # each lost to another process that changed the place at the same moment
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)  # EPERM: by a container's filter of calls
_MOUNTED = "where a file system is mounted, which cannot be replaced; name a folder in it"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def check_place(path: Path) -> None:
    """Raise ArtifactError if `path` is anything but free, an empty folder or an artifact, or cannot be replaced."""
    try:
        if _is_something_else(path):
            raise ArtifactError(f"{path} exists and is not an artifact; choose another place")
        place = Path(os.path.realpath(path))
        if place.is_symlink():
            raise ArtifactError(f"{path} is a link that leads nowhere; choose another place")
        if _is_here(place):
            raise ArtifactError(
                f"{path} is the current folder, which cannot be replaced; go up, or name a folder in it"
            )
        if os.path.ismount(place):  # not so if another process has just moved it away
            raise ArtifactError(f"{path} is {_MOUNTED}")
        above = next(p for p in place.parents if p.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            what = "cannot be written to" if above.is_dir() else "is not a folder"
            raise ArtifactError(f"{path}: cannot be written: {above} {what}")
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from None


def _is_something_else(path: Path) -> bool:
    """Whether something is there that is neither an empty folder nor an artifact. Raises OSError.

    Other processes may move it away meanwhile: what counts is still there afterwards.
    """
    for _ in range(_TRIES):
        if not path.exists():
            return False
        try:
            before = path.stat()
            if (path / MANIFEST).is_file() or (path.is_dir() and not any(path.iterdir())):
                return False
            if os.path.samestat(before, path.stat()):
                return True
        except FileNotFoundError:
            continue
    return True


def _is_here(place: Path) -> bool:
    """Whether `place` is the current folder; not if another process has just moved it away."""
    try:
        return os.path.samefile(place, os.curdir)
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def artifact_folder(path: Path) -> Iterator[Path]:
    """A folder to write an artifact in. It takes the place of `path` if the block succeeds, and vanishes if not.

    If `path` is a link, it stays, and what it leads to is replaced. Of several processes that write to the same `path`,
    the last one to end wins. Raises ArtifactError, with the old artifact in place.
    """
    check_place(path)
    try:
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(place.parent, _FOLDER)
        try:
            remove_abandoned(parent, _PREFIX, lambda folder: _put_back(parent, folder))
            held = make_held(parent, place.parent, _PREFIX)
        finally:
            os.close(parent)
        try:
            yield held.subfolder(_NEW)
            _sync_all(held)
            _publish(held, path, place.name)
        finally:
            held.remove()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {_reason(error)}") from None


def _publish(held: HeldFolder, path: Path, name: str) -> None:
    for _ in range(_TRIES):
        try:
            rename_new(held.descriptor, _NEW, held.parent, name)
        except FileExistsError:
            if _replace(held, path, name):
                break
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            if _rename_twice(held, path, name):
                break
        else:
            break
    else:
        raise ArtifactError(f"{path}: cannot be written: other processes keep changing it")
    sync_folder(held.parent)


def _replace(held: HeldFolder, path: Path, name: str) -> bool:
    """Exchange the new artifact and what has its name; False if that is gone."""
    check_place(path)
    try:
        exchange(held.descriptor, _NEW, held.parent, name)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return _rename_twice(held, path, name)
    try:
        check_place(held.path / _NEW)  # what was there a moment ago: only an artifact may go
    except ArtifactError:
        try:
            exchange(held.descriptor, _NEW, held.parent, name)
        except OSError:
            held.abandon()
            raise
        raise ArtifactError(f"{path} exists and is not an artifact; choose another place") from None
    return True


def _rename_twice(held: HeldFolder, path: Path, name: str) -> bool:
    """Without an exchange: move what is there out of the way, and back if the new artifact cannot take its place."""
    check_place(path)
    _write_name(held, name)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, _OLD, src_dir_fd=held.parent, dst_dir_fd=held.descriptor)
        os.rename(_NEW, name, src_dir_fd=held.descriptor, dst_dir_fd=held.parent)
    except OSError as error:
        try:
            _put_back(held.parent, held.descriptor)
        except OSError:
            held.abandon()
            raise ArtifactError(f"{path}: cannot be written; the old artifact is in {held.path / _OLD}") from None
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False  # another process was faster; its artifact is replaced in the next round
    finally:
        if not held.closed:  # from here on, what was replaced is never put back
            aside = f"replaced-{os.urandom(4).hex()}"
            with contextlib.suppress(OSError):
                os.unlink(_NAME, dir_fd=held.descriptor)
                os.rename(_OLD, aside, src_dir_fd=held.descriptor, dst_dir_fd=held.descriptor)
    return True


def _write_name(held: HeldFolder, name: str) -> None:
    """Note which name the old artifact has, for whoever has to put it back."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(_NAME, flags, 0o600, dir_fd=held.descriptor), "wb") as file:
        file.write(os.fsencode(name))


def _put_back(parent: int, folder: int) -> None:
    """Give an old artifact its name again if nothing has that name now. Raises OSError if that fails."""
    try:
        with open(os.open(_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
            name = os.fsdecode(file.read())
        os.stat(_OLD, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(_OLD, name, src_dir_fd=folder, dst_dir_fd=parent)


def _sync_all(held: HeldFolder) -> None:
    """Flush what the new artifact consists of to the disk, before its name shows it."""
    for _, _, files, folder in os.fwalk(_NEW, dir_fd=held.descriptor):
        for name in files:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        sync_folder(folder)
    sync_folder(held.descriptor)


def _reason(error: OSError) -> str:
    match error.errno:
        case errno.EXDEV:
            return "what is there belongs to another file system or layer; remove it first, or choose another place"
        case errno.EBUSY:
            return f"it is {_MOUNTED}"
    return str(error.strerror or error)
