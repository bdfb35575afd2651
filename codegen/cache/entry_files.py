"""Files of the compile cache: write a whole folder or nothing, read one back only if every byte is as written.

    incoming/entry-6f3a0c91d2e4/new/...   a new entry, or one that is being removed, in a private folder

A new entry is written into a private folder in `incoming/` (`ir/system/held_folder.py`), synced, and renamed to its
place in one step, so a reader sees all of it or none. The same the other way round when an entry is removed. Private
folders of killed processes are told by their free lock. No link is followed, and nothing but regular files is ever
removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EEXIST, EMLINK, ENOSYS, ENOTDIR, ENOTEMPTY, EOPNOTSUPP, EPERM, EXDEV
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO, TypeVar

from inferir.codegen.cache.entry_index import INDEX_NAME, FileRecord, Index
from inferir.codegen.cache.trust import Folder, check_regular, open_file, open_folder, read_file
from inferir.ir.system.checksum import file_checksum
from inferir.ir.system.held_folder import HeldFolder, make_held

_TRIES = 20
PREFIX = "entry"
_NEW, _OLD = "new", "old"
T = TypeVar("T")

COPIED = 1 << 30
"""Bytes up to which a file that cannot be shared is kept as a copy."""
_PIECE = 8 << 20  # copied at once: a multiple of huge pages, so that the page cache may hold them in such
_NO_LINK = frozenset({EXDEV, EPERM, EMLINK, ENOSYS, EOPNOTSUPP})
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
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

    def adopt(self, name: str, source: Path) -> FileRecord | None:
        """Hold the file `source` under `name` without a second copy of its bytes where the file system has hard links.

        Others lose the right to write to it. Where links are not possible, a file of up to `COPIED` bytes is copied;
        None for a larger one. Raises OSError.
        """
        descriptor = self.folder.descriptor
        try:
            os.link(source, name, dst_dir_fd=descriptor, follow_symlinks=False)
            with open(os.open(name, _READ, dir_fd=descriptor), "rb", buffering=0) as file:
                os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & ~(stat.S_IWGRP | stat.S_IWOTH) & 0o777)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if source.stat().st_size > COPIED:
                return None
            with open(source, "rb") as old, open(os.open(name, _CREATE, 0o644, dir_fd=descriptor), "xb") as new:
                copyfileobj(old, new, _PIECE)
                new.flush()
                os.fsync(new.fileno())
        with open(os.open(name, _READ, dir_fd=descriptor), "rb", buffering=0) as file:
            digest, size = file_checksum(file.fileno())
        return FileRecord(size, digest)

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
    held = make_held(incoming.descriptor, incoming.path, PREFIX)
    try:
        os.mkdir(_NEW, 0o755, dir_fd=held.descriptor)
        with open_folder(Folder(held.descriptor, held.path), _NEW) as folder:
            yield NewFolder(held, folder)
    finally:
        held.remove()


def with_entry(kind: Folder, digest: str, use: Callable[[Folder, Index], T]) -> T | None:
    """What `use` makes of the entry `digest` in the folder `kind` and of its index, or None if there is no entry.

    Raises DamagedEntryError naming the file that is missing or changed, RefusedError for what is not used, and OSError
    if the entry cannot be read at all.
    """
    for _ in range(_TRIES):
        try:
            with open_folder(kind, digest) as place:
                try:
                    return use(place, _read_open_index(kind.path.name, place))
                except DamagedEntryError:
                    if _is_at(kind, digest, place):
                        raise
                    # Another process replaced or removed the entry meanwhile: look again.
        except FileNotFoundError:
            return None
    return None


def read_entry(place: Folder, index: Index) -> dict[str, bytes]:
    """The verified files of an entry."""
    contents = {name: _read_at(place, name) for name in index.files}
    for name, content in contents.items():
        _compare(place, index, name, FileRecord.of(content))
    return contents


def check_entry(place: Folder, index: Index) -> None:
    """Compare every file of an entry with its checksum, in pieces."""
    for name in index.files:
        with _checked(place, index, name):
            pass


def take_file(name: str, destination: Path, place: Folder, index: Index) -> FileRecord:
    """Put the verified file `name` of an entry at `destination`, where nothing is yet, as a hard link if possible."""
    with _checked(place, index, name) as file:
        try:
            os.link(name, destination, src_dir_fd=place.descriptor, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            file.seek(0)
            with open(destination, "xb", buffering=0) as new:
                copyfileobj(file, new, _PIECE)
                os.fsync(new.fileno())
    return index.files[name]


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
    held = make_held(incoming.descriptor, incoming.path, PREFIX)
    try:
        os.rename(digest, _OLD, src_dir_fd=kind.descriptor, dst_dir_fd=held.descriptor)
    except FileNotFoundError:
        return
    except OSError:
        # Some layered file systems cannot rename a folder: without its index it is no entry any more.
        _remove_in_place(kind, digest)
    finally:
        held.remove()


def _remove_in_place(kind: Folder, digest: str) -> None:
    try:
        with open_folder(kind, digest) as place:
            for name in sorted(os.listdir(place.descriptor), key=lambda name: name != INDEX_NAME):
                os.unlink(name, dir_fd=place.descriptor)
        os.rmdir(digest, dir_fd=kind.descriptor)
    except FileNotFoundError:
        return


def _read_open_index(kind: str, place: Folder) -> Index:
    try:
        index = Index.decode(_read_at(place, INDEX_NAME))
    except ValueError as error:
        raise DamagedEntryError(place.path / INDEX_NAME, str(error)) from error
    if (index.kind, index.digest) != (kind, place.path.name):
        raise DamagedEntryError(place.path / INDEX_NAME, f"describes the {index.kind} entry {index.digest}")
    return index


@contextmanager
def _checked(place: Folder, index: Index, name: str) -> Iterator[BinaryIO]:
    """A file, open for reading, whose content has been verified in pieces."""
    if name not in index.files:
        raise DamagedEntryError(place.path / name, "missing")
    try:
        with open_file(place, name) as file:
            digest, size = file_checksum(file.fileno())
            _compare(place, index, name, FileRecord(size, digest))
            yield file
    except FileNotFoundError:
        raise DamagedEntryError(place.path / name, "missing") from None


def _compare(place: Folder, index: Index, name: str, found: FileRecord) -> None:
    record = index.files[name]
    if found.nbytes != record.nbytes:
        raise DamagedEntryError(place.path / name, f"has {found.nbytes} bytes instead of {record.nbytes}")
    if found != record:
        raise DamagedEntryError(place.path / name, "checksum mismatch")


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
