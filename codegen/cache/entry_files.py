"""Files of the compile cache: write a whole folder or nothing, read one back only if every byte is as written.

    incoming/entry-6f3a0c91d2e4/new/...   a new entry, or one that is being removed, in a private folder

A new entry is written into a private folder in `incoming/` (`ir/system/held_folder.py`), synced, and renamed to its
place in one step, so a reader sees all of it or none. The same the other way round when an entry is removed. Private
folders of killed processes are told by their free lock. No link is followed, and nothing but regular files is ever
removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EEXIST, ENOTDIR, ENOTEMPTY
from pathlib import Path

from inferir.codegen.cache.entry_index import INDEX_NAME, FileRecord, Index
from inferir.codegen.cache.trust import Folder, check_regular, open_folder, read_file
from inferir.ir.system.held_folder import HeldFolder, make_held, remove_abandoned

_TRIES = 20
_PREFIX = "entry"
_NEW, _OLD = "new", "old"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DamagedEntryError(Exception):
    """A file of an entry is missing or is not what was written."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NewFolder:
    """A private folder that becomes an entry when `publish` succeeds."""

    held: HeldFolder
    folder: Folder

    def write(self, name: str, content: bytes) -> None:
        """Write and sync one file. Raises OSError whose `filename` is `name`."""
        try:
            with open(os.open(name, _CREATE, 0o644, dir_fd=self.folder.descriptor), "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error

    def publish(self, kind: Folder, digest: str) -> bool:
        """Move the folder to the place `digest` in the folder `kind`; False if something is there already."""
        os.fsync(self.folder.descriptor)
        try:
            os.rename(_NEW, digest, src_dir_fd=self.held.descriptor, dst_dir_fd=kind.descriptor)
        except OSError as error:
            if error.errno in (EEXIST, ENOTEMPTY, ENOTDIR):
                return False
            raise OSError(error.errno, error.strerror, str(kind.path / digest)) from error
        os.fsync(kind.descriptor)
        return True


@contextmanager
def new_folder(incoming: Folder) -> Iterator[NewFolder]:
    """A locked private folder in `incoming`; whatever is left of it afterwards is removed. Raises OSError."""
    held = make_held(incoming.descriptor, incoming.path, _PREFIX)
    try:
        os.mkdir(_NEW, 0o755, dir_fd=held.descriptor)
        with open_folder(Folder(held.descriptor, held.path), _NEW) as folder:
            yield NewFolder(held, folder)
    finally:
        held.remove()


def read_entry(kind: Folder, digest: str) -> tuple[Index, dict[str, bytes]] | None:
    """The index and the verified files of the entry `digest` in the folder `kind`, or None if there is no entry.

    Raises DamagedEntryError naming the file that is missing or changed, RefusedError for what is not used, and OSError
    if the entry cannot be read at all.
    """
    for _ in range(_TRIES):
        try:
            with open_folder(kind, digest) as place:
                try:
                    return _read_open_entry(kind.path.name, place)
                except DamagedEntryError:
                    if _is_at(kind, digest, place):
                        raise
                    # Another process replaced or removed the entry meanwhile: look again.
        except FileNotFoundError:
            return None
    return None


def read_index(kind: Folder, digest: str) -> tuple[Index, float] | None:
    """The index of an entry and the time of its last use, without looking at its files; None if it cannot be had.

    Raises RefusedError for what is not used.
    """
    try:
        with open_folder(kind, digest) as place:
            index = Index.decode(read_file(place, INDEX_NAME))
            return index, os.stat(INDEX_NAME, dir_fd=place.descriptor, follow_symlinks=False).st_mtime
    except (OSError, ValueError):
        return None


def touch(kind: Folder, digest: str) -> None:
    """Note that an entry was used now. Raises OSError and RefusedError."""
    with open_folder(kind, digest) as place:
        os.utime(INDEX_NAME, dir_fd=place.descriptor, follow_symlinks=False)


def discard(kind: Folder, digest: str, incoming: Folder) -> None:
    """Remove an entry so that no reader sees half of it.

    Raises OSError if it cannot be removed, and RefusedError, with nothing removed, if it holds anything but files.
    """
    try:
        with open_folder(kind, digest) as place:
            for name in os.listdir(place.descriptor):
                with suppress(FileNotFoundError):
                    check_regular(place, name)
    except FileNotFoundError:
        return
    held = make_held(incoming.descriptor, incoming.path, _PREFIX)
    try:
        os.rename(digest, _OLD, src_dir_fd=kind.descriptor, dst_dir_fd=held.descriptor)
    except FileNotFoundError:
        return
    except OSError:
        # Some layered file systems cannot rename a folder: without its index it is no entry any more.
        _remove_in_place(kind, digest)
    finally:
        held.remove()


def remove_stale(incoming: Folder) -> int:
    """Remove what killed writers left in `incoming`, never a folder in use; returns how many. Ignores OSError."""
    return remove_abandoned(incoming.descriptor, _PREFIX)


def _remove_in_place(kind: Folder, digest: str) -> None:
    try:
        with open_folder(kind, digest) as place:
            for name in sorted(os.listdir(place.descriptor), key=lambda name: name != INDEX_NAME):
                os.unlink(name, dir_fd=place.descriptor)
        os.rmdir(digest, dir_fd=kind.descriptor)
    except FileNotFoundError:
        return


def _read_open_entry(kind: str, place: Folder) -> tuple[Index, dict[str, bytes]]:
    try:
        index = Index.decode(_read_at(place, INDEX_NAME))
    except ValueError as error:
        raise DamagedEntryError(place.path / INDEX_NAME, str(error)) from error
    if (index.kind, index.digest) != (kind, place.path.name):
        raise DamagedEntryError(place.path / INDEX_NAME, f"describes the {index.kind} entry {index.digest}")
    files = {}
    for name, record in index.files.items():
        content = _read_at(place, name)
        if len(content) != record.nbytes:
            raise DamagedEntryError(place.path / name, f"has {len(content)} bytes instead of {record.nbytes}")
        if FileRecord.of(content) != record:
            raise DamagedEntryError(place.path / name, "checksum mismatch")
        files[name] = content
    return index, files


def _read_at(place: Folder, name: str) -> bytes:
    try:
        return read_file(place, name)
    except FileNotFoundError:
        raise DamagedEntryError(place.path / name, "missing") from None


def _is_at(kind: Folder, digest: str, place: Folder) -> bool:
    try:
        here = os.stat(digest, dir_fd=kind.descriptor, follow_symlinks=False)
        return os.path.samestat(here, os.fstat(place.descriptor))
    except OSError:
        return False
