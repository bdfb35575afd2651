"""Files of the compile cache: write a whole folder or nothing, read one back only if every byte is as written.

A new entry is written into a private folder under `incoming/`, synced, and renamed to its place in one step, so a
reader sees all of it or none. The writer holds an advisory lock on its private folder until then; the kernel drops the
lock when the writer ends, however it ends, which is how `remove_stale` tells a killed writer's folder from a busy one.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EEXIST, ENOTEMPTY, EWOULDBLOCK
from pathlib import Path

from inferir.codegen.cache_index import INDEX_NAME, FileRecord, Index

_TRIES = 20
_STALE_SECONDS = 3600.0  # only where the file system has no locks


class DamagedEntryError(Exception):
    """A file of an entry is missing or is not what was written."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NewFolder:
    """A private folder that becomes an entry when `publish` succeeds."""

    path: Path

    def write(self, name: str, content: bytes) -> None:
        """Write and sync one file. Raises OSError whose `filename` is `name`."""
        try:
            with open(self.path / name, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error

    def publish(self, place: Path) -> bool:
        """Move the folder to `place`; False if an entry is there already."""
        place.parent.mkdir(parents=True, exist_ok=True)
        _sync_folder(self.path)
        try:
            os.rename(self.path, place)
        except OSError as error:
            if error.errno in (EEXIST, ENOTEMPTY):
                return False
            raise
        _sync_folder(place.parent)
        return True


@contextmanager
def new_folder(incoming: Path) -> Iterator[NewFolder]:
    """A locked private folder under `incoming`; whatever is left of it afterwards is removed. Raises OSError."""
    path, handle = _create_locked(incoming)
    try:
        yield NewFolder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def read_entry(place: Path) -> tuple[Index, dict[str, bytes]] | None:
    """The index and the verified files of the entry at `place`, or None if there is no entry.

    Raises DamagedEntryError naming the file that is missing or changed, and OSError if the entry cannot be read at all.
    """
    for _ in range(_TRIES):
        try:
            handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        try:
            return _read_open_entry(place, handle)
        except DamagedEntryError:
            if _is_at(place, handle):
                raise
            # Another process replaced or removed the entry meanwhile: look again.
        finally:
            os.close(handle)
    return None


def read_index(place: Path) -> Index | None:
    """The index of the entry at `place` without looking at its files; None if it cannot be read or is damaged."""
    try:
        return Index.decode((place / INDEX_NAME).read_bytes())
    except (OSError, ValueError):
        return None


def discard(place: Path, incoming: Path) -> None:
    """Remove an entry so that no reader sees half of it. Raises OSError if it cannot be removed."""
    grave = incoming / _private_name()
    try:
        incoming.mkdir(parents=True, exist_ok=True)
        os.rename(place, grave)
    except FileNotFoundError:
        return
    except OSError:
        # Some layered file systems cannot rename a folder: without its index it is no entry any more.
        with suppress(FileNotFoundError):
            os.unlink(place / INDEX_NAME)
        shutil.rmtree(place, ignore_errors=True)
        if place.exists():
            raise
        return
    shutil.rmtree(grave, ignore_errors=True)


def remove_stale(incoming: Path) -> int:
    """Remove what killed writers left under `incoming`, never a folder in use; returns how many. Ignores OSError."""
    removed = 0
    with suppress(OSError):
        for path in list(incoming.iterdir()):
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY)
                try:
                    locked = _try_lock(handle)
                    old = time.time() - os.fstat(handle).st_mtime > _STALE_SECONDS
                    if locked or (locked is None and old):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                        removed += 1
                finally:
                    os.close(handle)
    return removed


def _read_open_entry(place: Path, handle: int) -> tuple[Index, dict[str, bytes]]:
    try:
        index = Index.decode(_read_at(place, handle, INDEX_NAME))
    except ValueError as error:
        raise DamagedEntryError(place / INDEX_NAME, str(error)) from error
    if (index.kind, index.digest) != (place.parent.name, place.name):
        raise DamagedEntryError(place / INDEX_NAME, f"describes the {index.kind} entry {index.digest}")
    files = {}
    for name, record in index.files.items():
        content = _read_at(place, handle, name)
        if len(content) != record.nbytes:
            raise DamagedEntryError(place / name, f"has {len(content)} bytes instead of {record.nbytes}")
        if FileRecord.of(content) != record:
            raise DamagedEntryError(place / name, "checksum mismatch")
        files[name] = content
    return index, files


def _read_at(place: Path, handle: int, name: str) -> bytes:
    try:
        with open(os.open(name, os.O_RDONLY, dir_fd=handle), "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise DamagedEntryError(place / name, "missing") from None
    except IsADirectoryError:
        raise DamagedEntryError(place / name, "not a file") from None


def _create_locked(incoming: Path) -> tuple[Path, int]:
    for _ in range(_TRIES):
        incoming.mkdir(parents=True, exist_ok=True)
        path = incoming / _private_name()
        os.mkdir(path)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # taken for stale before it could be locked
        if _try_lock(handle) is not False and _is_at(path, handle):
            return path, handle
        os.close(handle)
    raise OSError(EWOULDBLOCK, "no private folder could be made", str(incoming))


def _try_lock(handle: int) -> bool | None:
    """True if the lock is ours now, False if another process holds it, None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def _private_name() -> str:
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
