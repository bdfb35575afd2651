"""The persistent compile cache: generated files by the content of what they were generated from.

    ROOT/v1/entries/KIND/DIGEST/index.json   the key's components, size and checksum of every file
    ROOT/v1/entries/KIND/DIGEST/...          the files
    ROOT/v1/incoming/                        entries being written; empty when nobody writes

An entry is found by the digest of its `CacheKey` alone, so the folder can be copied or moved anywhere. Files are read
whole and checked on every `get`; what is returned are the checked bytes, never a path that may change later. A damaged
file costs a warning that names it and a rebuild. Any number of processes may use one folder at the same time.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from inferir.codegen.cache_files import (
    DamagedEntryError,
    discard,
    new_folder,
    read_entry,
    read_index,
    remove_stale,
)
from inferir.codegen.cache_index import INDEX_NAME, FileRecord, Index
from inferir.ir.cache_key import JSON, CacheKey, Difference, differences, leaves
from inferir.ir.errors import CacheError

_log = logging.getLogger(__name__)
_KIND = re.compile(r"[a-z][a-z0-9-]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_ADVICE = "free or unlock that folder, or set INFERIR_CACHE to another one, or to off for none"


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Where the cache is and how it may be used. `root` None: INFERIR_CACHE, else XDG_CACHE_HOME, else ~/.cache."""

    root: Path | None = None
    enabled: bool = True
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A hit: the checked bytes of every file."""

    kind: str
    digest: str
    files: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing usable is stored. `reason` is one line; `differences` are those to the nearest stored entry."""

    kind: str
    digest: str
    reason: str
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One stored entry; `nbytes` counts its files, `used` is the time of its last use in seconds since the epoch."""

    kind: str
    digest: str
    nbytes: int
    used: float
    components: Mapping[str, JSON]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is missing or not what was written."""

    file: Path
    reason: str


class CompileCache:
    """A cache in the folder `root`, or in memory only if `root` is None. Threads may share one instance."""

    def __init__(self, root: Path | None, readonly: bool = False) -> None:
        self.root = None if root is None else root.absolute()
        self.readonly = readonly
        self.hits = 0
        self.misses = 0
        self._memory: dict[tuple[str, str], tuple[Index, Entry]] = {}
        self._known: dict[tuple[str, str], Index] = {}
        self._leaves: dict[tuple[str, str], dict[tuple[str, ...], str]] = {}
        self._lock = threading.Lock()
        self._stale_removed = False

    @classmethod
    def from_env(cls, options: CacheOptions | None = None, environ: Mapping[str, str] = os.environ) -> "CompileCache":
        """The cache that options and environment ask for; options win, and `off` in INFERIR_CACHE means no files."""
        options = options or CacheOptions()
        named = environ.get("INFERIR_CACHE", "")
        if not options.enabled or (options.root is None and named.lower() == "off"):
            return cls(None)
        if options.root is not None:
            return cls(options.root, options.readonly)
        if named:
            return cls(Path(named), options.readonly)
        shared = environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(shared):
            return cls(Path(shared) / "inferir", options.readonly)
        home = environ.get("HOME") or os.path.expanduser("~")
        if not os.path.isabs(home):
            _log.warning("compile cache: there is no home folder and INFERIR_CACHE is not set; nothing is kept")
            return cls(None)
        return cls(Path(home) / ".cache" / "inferir", options.readonly)

    def get(self, kind: str, key: CacheKey) -> Entry | Miss:
        """The entry stored under `key`, or why there is none. Never raises for what is on the disk."""
        _check_kind(kind)
        self._remove_stale_once()
        entry, problem = self._load(kind, key.digest)
        with self._lock:
            self.hits += entry is not None
            self.misses += entry is None
        if entry is not None:
            return entry
        return Miss(kind, key.digest, problem) if problem else self._miss(kind, key)

    def put(self, kind: str, key: CacheKey, files: Mapping[str, bytes | Path]) -> Entry:
        """Store `files` (names without folders) under `key`, all or nothing.

        If another process stored the same key first, its entry is kept and returned. Raises CacheError that names the
        folder and the reason if the entry cannot be written; nothing of it is left then.
        """
        _check_kind(kind)
        contents = {_check_name(name): _content(value) for name, value in files.items()}
        records = {name: FileRecord.of(content) for name, content in contents.items()}
        index = Index(kind, key.digest, key.summary, records)
        entry = Entry(kind, key.digest, contents)
        if self.root is None:
            return self._memory.setdefault((kind, key.digest), (index, entry))[1]
        self._refuse_readonly()
        self._remove_stale_once()
        try:
            return self._publish(index, entry)
        except OSError as error:
            raise self._unwritable(error) from error

    def require_writable(self) -> None:
        """Raise CacheError now if `put` could not work, so that nobody compiles first and fails afterwards."""
        if self.root is None:
            return
        self._refuse_readonly()
        try:
            with new_folder(self._incoming) as folder:
                folder.write("probe", b"\0")
        except OSError as error:
            raise self._unwritable(error) from error

    def ls(self) -> list[EntryInfo]:
        """All entries with an intact index, by kind and then by last use, newest first."""
        found = []
        for place, index in self._indexes():
            with suppress(OSError):
                used = 0.0 if place is None else (place / INDEX_NAME).stat().st_mtime
                names = tuple(index.files)
                found.append(EntryInfo(index.kind, index.digest, index.nbytes, used, index.components, names))
        return sorted(found, key=lambda info: (info.kind, -info.used, info.digest))

    def find(self, prefix: str) -> EntryInfo:
        """The one entry whose digest starts with `prefix`. Raises CacheError if there is none or more than one."""
        found = [info for info in self.ls() if info.digest.startswith(prefix)]
        if len(found) != 1:
            what = f"{len(found)} entries start" if found else "no entry starts"
            raise CacheError(f"compile cache {self.root or '(in memory)'}: {what} with {prefix!r}; `ls` lists them all")
        return found[0]

    def explain(self, kind: str, key: CacheKey) -> str:
        """One line: a hit, or what differs from the nearest stored entry. Changes nothing."""
        for _, index in self._indexes(kind):
            if index.digest == key.digest:
                return f"{kind} {key.digest[:12]} is stored: {len(index.files)} files, {index.nbytes} bytes"
        return self._miss(kind, key).reason

    def verify(self) -> list[Damage]:
        """Read every entry; damaged ones are reported and, unless the cache is read-only, dropped."""
        self._remove_stale_once()
        found = []
        for place in self._places():
            try:
                read_entry(place)
            except DamagedEntryError as error:
                self._drop(place, error)
                found.append(Damage(error.file, error.reason))
            except OSError as error:
                found.append(Damage(place, f"cannot be read: {error.strerror}"))
        return found

    def prune(self, max_bytes: int | None = None, max_age: float | None = None) -> list[EntryInfo]:
        """Remove entries unused for more than `max_age` seconds, then the least recently used until `max_bytes` hold.

        Returns what was removed. Raises CacheError if the folder is read-only.
        """
        self._refuse_readonly()
        self._remove_stale_once()
        oldest_first = sorted(self.ls(), key=lambda info: (info.used, info.digest))
        total, now, removed = sum(info.nbytes for info in oldest_first), time.time(), []
        for info in oldest_first:
            too_old = max_age is not None and now - info.used > max_age
            if too_old or (max_bytes is not None and total > max_bytes):
                removed.append(info)
                total -= info.nbytes
        for info in removed:
            if self.root is None:
                del self._memory[info.kind, info.digest]
                continue
            try:
                discard(self._place(info.kind, info.digest), self._incoming)
            except OSError as error:
                raise self._unwritable(error) from error
        return removed

    @property
    def _base(self) -> Path:
        assert self.root is not None
        return self.root / "v1"

    @property
    def _incoming(self) -> Path:
        return self._base / "incoming"

    def _place(self, kind: str, digest: str) -> Path:
        return self._base / "entries" / kind / digest

    def _places(self, kind: str | None = None) -> Iterator[Path]:
        if self.root is None:
            return
        entries = self._base / "entries"
        for folder in _folders(entries) if kind is None else [entries / kind]:
            yield from _folders(folder)

    def _indexes(self, kind: str | None = None) -> Iterator[tuple[Path | None, Index]]:
        for index, _ in list(self._memory.values()):
            if kind in (None, index.kind):
                yield None, index
        for place in self._places(kind):
            name = (place.parent.name, place.name)
            stored = self._known.get(name) or read_index(place)
            if stored is not None and (stored.kind, stored.digest) == name:
                self._known[name] = stored
                yield place, stored

    def _load(self, kind: str, digest: str) -> tuple[Entry | None, str]:
        """The entry, or None and what is wrong with the stored one (empty if none is stored)."""
        if self.root is None:
            stored = self._memory.get((kind, digest))
            return (stored[1] if stored else None), ""
        place = self._place(kind, digest)
        try:
            found = read_entry(place)
        except DamagedEntryError as error:
            self._drop(place, error)
            return None, f"{error.file}: {error.reason}"
        except OSError as error:
            _log.warning("compile cache: %s: cannot be read: %s", place, error.strerror)
            return None, f"{place}: cannot be read: {error.strerror}"
        if found is None:
            return None, ""
        if not self.readonly:
            with suppress(OSError):
                os.utime(place / INDEX_NAME)
        return Entry(kind, digest, found[1]), ""

    def _publish(self, index: Index, entry: Entry) -> Entry:
        place = self._place(index.kind, index.digest)
        while True:
            with new_folder(self._incoming) as folder:
                for name, content in entry.files.items():
                    folder.write(name, content)
                folder.write(INDEX_NAME, index.encode())
                if folder.publish(place):
                    return entry
            stored, _ = self._load(index.kind, index.digest)
            if stored is not None:
                return stored
            # What was there is damaged: out of the way, or OSError.
            discard(place, self._incoming)

    def _drop(self, place: Path, error: DamagedEntryError) -> None:
        outcome = "left in place, the cache is read-only"
        if not self.readonly:
            try:
                discard(place, self._incoming)
                outcome = "entry dropped"
            except OSError as reason:
                outcome = f"the entry cannot be removed: {reason.strerror}"
        self._known.pop((place.parent.name, place.name), None)
        _log.warning("compile cache: %s: %s; %s", error.file, error.reason, outcome)

    def _miss(self, kind: str, key: CacheKey) -> Miss:
        wanted, nearest, fewest = leaves(key.summary), None, 0
        for _, index in self._indexes(kind):
            stored = self._leaves.get((kind, index.digest))
            if stored is None:
                stored = self._leaves[kind, index.digest] = leaves(index.components)
            distance = len(stored.items() ^ wanted.items())
            if distance and (nearest is None or distance < fewest):
                nearest, fewest = index, distance
        if nearest is None:
            return Miss(kind, key.digest, f"no {kind} entry is stored")
        found = differences(nearest.components, key.summary)
        what = ", ".join(str(difference) for difference in found)
        return Miss(kind, key.digest, f"no {kind} entry has this key; the nearest differs in {what}", found)

    def _remove_stale_once(self) -> None:
        if self.root is not None and not self.readonly and not self._stale_removed:
            self._stale_removed = True
            remove_stale(self._incoming)

    def _refuse_readonly(self) -> None:
        if self.readonly:
            raise CacheError(f"compile cache {self.root}: opened read-only, so nothing can be stored or removed")

    def _unwritable(self, error: OSError) -> CacheError:
        what = f"cannot write {error.filename}: " if error.filename else ""
        return CacheError(f"compile cache {self.root}: {what}{error.strerror or error}; {_ADVICE}")


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as items:
            return [path / name for name in sorted(item.name for item in items if item.is_dir())]
    except OSError:
        return []


def _check_kind(kind: str) -> None:
    if not _KIND.fullmatch(kind):
        raise CacheError(f"compile cache: {kind!r} is no kind of entry: lower-case letters, digits and '-' only")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == INDEX_NAME:
        raise CacheError(f"compile cache: {name!r} cannot be the name of a stored file")
    return name


def _content(value: bytes | Path) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.read_bytes()
    except OSError as error:
        raise CacheError(f"{value}: cannot be read to be stored: {error.strerror}") from error
