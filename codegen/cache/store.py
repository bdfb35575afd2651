"""The entries of a compile cache on disk, found from its root by descriptors.

Every call walks down from the root again, so a root that is removed, moved or given to somebody else meanwhile is
noticed. RefusedError tells of what is not used at all (`trust.py`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from inferir.codegen.cache import entry_files as files
from inferir.codegen.cache.cache_key import JSON
from inferir.codegen.cache.entry_index import INDEX_NAME, FileRecord, Index
from inferir.codegen.cache.trust import Folder, RefusedError, open_folder, open_root, read_file
from inferir.ir.system.held_folder import remove_abandoned

KIND = re.compile(r"[a-z][a-z0-9-]*")
T = TypeVar("T")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION, _ENTRIES, _INCOMING = "v2", "entries", "incoming"

Refuse = Callable[[RefusedError], None]
"""Is told of what a listing leaves out."""


class Store:
    """The folder `root`, which is made when something is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / _VERSION / _INCOMING

    def place(self, kind: str, digest: str) -> Path:
        """Where an entry is, for messages."""
        return self.root / _VERSION / _ENTRIES / kind / digest

    def read(self, kind: str, digest: str) -> Mapping[str, bytes] | None:
        """The verified files of an entry, or None if there is none. Raises as `entry_files.with_entry`, like those
        below.
        """
        return self._use(kind, digest, files.read_entry)

    def check(self, kind: str, digest: str) -> None:
        """Verify the files of an entry, if there is one."""
        self._use(kind, digest, files.check_entry)

    def take_file(self, kind: str, digest: str, name: str, destination: Path) -> FileRecord | None:
        """See `entry_files.take_file`; None if there is no entry."""
        return self._use(kind, digest, partial(files.take_file, name, destination))

    def touch(self, kind: str, digest: str) -> None:
        """Note that an entry was used now. Raises OSError and RefusedError."""
        with self._kind(kind) as folder, open_folder(folder, digest) as place:
            os.utime(INDEX_NAME, dir_fd=place.descriptor, follow_symlinks=False)

    def write(self, index: Index, content: Mapping[str, bytes]) -> bool:
        """Store an entry; False if something is at its place. Raises OSError, with nothing left, and RefusedError."""
        with self._open(_INCOMING, create=True) as incoming, files.new_folder(incoming) as folder:
            for name, raw in content.items():
                folder.write(name, raw)
            folder.write(INDEX_NAME, index.encode())
            with self._kind(index.kind, create=True) as kind:
                return folder.publish(kind, index.digest)

    def adopt(
        self, kind: str, digest: str, components: Mapping[str, JSON], name: str, source: Path
    ) -> FileRecord | None:
        """Store an entry of one file that shares the bytes of `source`; None if they cannot be shared.

        Raises OSError, with nothing left, and RefusedError.
        """
        with self._open(_INCOMING, create=True) as incoming, files.new_folder(incoming) as folder:
            record = folder.adopt(name, source)
            if record is None:
                return None
            folder.write(INDEX_NAME, Index(kind, digest, components, {name: record}).encode())
            with self._kind(kind, create=True) as place:
                folder.publish(place, digest)
            return record

    def probe(self) -> None:
        """Write something and remove it. Raises OSError and RefusedError."""
        with self._open(_INCOMING, create=True) as incoming, files.new_folder(incoming) as folder:
            folder.write("probe", b"\0")

    def discard(self, kind: str, digest: str) -> None:
        """Remove an entry. Raises as `entry_files.discard`."""
        with suppress(FileNotFoundError), self._kind(kind) as folder, self._open(_INCOMING, create=True) as incoming:
            files.discard(folder, digest, incoming)

    def remove_stale(self) -> None:
        """Remove what killed writers left. Ignores OSError; raises RefusedError."""
        with suppress(OSError), self._open(_INCOMING) as incoming:
            remove_abandoned(incoming.descriptor, files.PREFIX)

    def index(self, kind: str, digest: str) -> tuple[Index, float, int] | None:
        """An entry's index, the time of its last use, and how many of its bytes artifacts hold too, without looking
        into its files; None if it cannot be had. Raises RefusedError.
        """
        try:
            with self._kind(kind) as folder, open_folder(folder, digest) as place:
                index = Index.decode(read_file(place, INDEX_NAME))
                used, *found = (
                    os.stat(name, dir_fd=place.descriptor, follow_symlinks=False) for name in (INDEX_NAME, *index.files)
                )
        except (OSError, ValueError):
            return None
        return index, used.st_mtime, sum(file.st_size for file in found if file.st_nlink > 1)

    def entries(self, refuse: Refuse, kind: str | None = None) -> list[tuple[str, str]]:
        """Kind and digest of every entry. Links and what is not ours are refused; other things are not looked at.

        Raises RefusedError if the root or what holds all entries is not used.
        """
        found = []
        with suppress(OSError), self._open(_ENTRIES) as entries:
            for name in _names(entries, KIND, refuse) if kind is None else [kind]:
                with suppress(OSError):
                    try:
                        with open_folder(entries, name) as folder:
                            found += [(name, digest) for digest in _names(folder, _DIGEST, refuse)]
                    except RefusedError as error:
                        refuse(error)
        return found

    @contextmanager
    def _open(self, name: str, create: bool = False) -> Iterator[Folder]:
        with (
            open_root(self.root, create) as root,
            open_folder(root, _VERSION, create) as version,
            open_folder(version, name, create) as folder,
        ):
            yield folder

    def _use(self, kind: str, digest: str, use: Callable[[Folder, Index], T]) -> T | None:
        try:
            with self._kind(kind) as folder:
                return files.with_entry(folder, digest, use)
        except FileNotFoundError:
            return None

    @contextmanager
    def _kind(self, kind: str, create: bool = False) -> Iterator[Folder]:
        with self._open(_ENTRIES, create) as entries, open_folder(entries, kind, create) as folder:
            yield folder


def _names(folder: Folder, pattern: re.Pattern[str], refuse: Refuse) -> list[str]:
    found = []
    for name in sorted(os.listdir(folder.descriptor)):
        with suppress(OSError):
            mode = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                refuse(RefusedError(folder.path / name, "is a link"))
            elif stat.S_ISDIR(mode) and pattern.fullmatch(name):
                found.append(name)
    return found
