"""The persistent compile cache: generated files by the content of what they were generated from.

    ROOT/v2/entries/KIND/DIGEST/index.json   the key's components, size and checksum of every file
    ROOT/v2/entries/KIND/DIGEST/...          the files
    ROOT/v2/incoming/                        entries being written; empty when nobody writes

An entry is found by the digest of its `CacheKey` alone, so the folder can be copied or moved anywhere. Files are read
whole and checked on every `get`; what is returned are the checked bytes, never a path that may change later. Packed
weights are files that artifacts and cache share (`keep_file`, `take_file`), checked before they are handed out. A
damaged file costs a warning that names it and a rebuild. What another user could have written, and what is a link, is
not used: a warning names it, and it counts as a miss. Any number of processes may use one folder at the same time.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from inferir.codegen.cache.cache_key import JSON, CacheKey, differences, leaves
from inferir.codegen.cache.entry_files import DamagedEntryError
from inferir.codegen.cache.entry_index import FileRecord, Index, is_file_name
from inferir.codegen.cache.store import KIND, Store
from inferir.codegen.cache.trust import RefusedError
from inferir.ir.errors import CacheError

_log = logging.getLogger(__name__)
_NOT_USED = (
    "it is neither used nor removed. A cache holds no links, and nobody but you and root may write to it: "
    "mend that (chmod, chown), or set INFERIR_CACHE to another folder"
)
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

    files: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing usable is stored. `reason` is one line, with what differs from the nearest stored entry."""

    reason: str


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One stored entry; `nbytes` counts its files, `used` is the time of its last use in seconds since the epoch.

    shared: bytes of them that artifacts hold too, so that removing the entry frees none of these.
    """

    kind: str
    digest: str
    nbytes: int
    used: float
    components: Mapping[str, JSON]
    files: tuple[str, ...]
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is missing or not what was written; `refused`: something that is not used, and stays where it is."""

    file: Path
    reason: str
    refused: bool = False


class CompileCache:
    """A cache in the folder `root`, or in memory only if `root` is None. Threads may share one instance."""

    def __init__(self, root: Path | None, readonly: bool = False) -> None:
        self.root = None if root is None else root.absolute()
        self._store = None if self.root is None else Store(self.root)
        self.readonly = readonly
        self.hits = 0
        self.misses = 0
        self._memory: dict[tuple[str, str], tuple[Index, Entry]] = {}
        self._known: dict[tuple[str, str], Index] = {}
        self._leaves: dict[tuple[str, str], dict[tuple[str, ...], str]] = {}
        self._lock = threading.Lock()
        self._stale_removed = False
        self._warned: set[str] = set()

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
        try:
            entry, problem = self._load(kind, key.digest)
        except RefusedError as error:
            self._refuse(error)
            entry, problem = None, str(error)
        with self._lock:
            self.hits += entry is not None
            self.misses += entry is None
        if entry is not None:
            _log.debug("compile cache: %s %.12s: hit", kind, key.digest)
            return entry
        miss = Miss(problem or self._miss(kind, key))
        _log.debug("compile cache: %s %.12s: miss: %s", kind, key.digest, miss.reason)
        return miss

    def put(self, kind: str, key: CacheKey, files: Mapping[str, bytes]) -> Entry:
        """Store `files` (names without folders) under `key`, all or nothing.

        If another process stored the same key first, its entry is kept and returned. Raises CacheError that names the
        folder and the reason if the entry cannot be written; nothing of it is left then.
        """
        _check_kind(kind)
        contents = {_check_name(name): content for name, content in files.items()}
        records = {name: FileRecord.of(content) for name, content in contents.items()}
        index = Index(kind, key.digest, key.summary, records)
        entry = Entry(contents)
        if self._store is None:
            return self._memory.setdefault((kind, key.digest), (index, entry))[1]
        self._refuse_readonly()
        self._remove_stale_once()
        stored = None
        with self._writing():
            stored = self._publish(self._store, index, entry)
        return stored or entry

    def take_file(self, kind: str, key: CacheKey, name: str, destination: Path) -> FileRecord | None:
        """Put the file `name` stored under `key` at `destination`, where nothing is: a hard link where the file system
        has them, else a copy. Returns its size and checksum, None if it is not stored. Raises OSError if `destination`
        cannot be written.
        """
        _check_kind(kind)
        self._remove_stale_once()
        found = None
        if self._store is not None:
            try:
                found = self._store.take_file(kind, key.digest, name, destination)
            except RefusedError as error:
                self._refuse(error)
            except DamagedEntryError as error:
                self._drop(self._store, kind, key.digest, error)
            if found is not None:
                self._touch(self._store, kind, key.digest)
        with self._lock:
            self.hits += found is not None
            self.misses += found is None
        _log.debug("compile cache: %s %.12s, file %s: %s", kind, key.digest, name, "hit" if found else "miss")
        return found

    def keep_file(self, kind: str, key: CacheKey, name: str, source: Path) -> FileRecord | None:
        """Store the finished file `source` under `key` and `name`, sharing its bytes (see `NewFolder.adopt`). Returns
        its size and checksum, None if it is not stored.

        A large file that cannot be shared is not stored, nor is anything in memory or in a read-only cache.
        Raises CacheError.
        """
        _check_kind(kind)
        if self._store is None or self.readonly:
            return None
        kept: list[FileRecord | None] = []
        with self._writing():
            kept.append(self._store.adopt(kind, key.digest, key.summary, name, source))
        return kept[0] if kept else None

    def require_writable(self) -> None:
        """Raise CacheError now if `put` could not work, so that nobody compiles first and fails afterwards.

        A cache that is not used for what others could write to it stands in nobody's way.
        """
        if self._store is None:
            return
        self._refuse_readonly()
        with self._writing():
            self._store.probe()

    def ls(self) -> list[EntryInfo]:
        """All entries with an intact index, by kind and then by last use, newest first.

        Raises CacheError if the whole cache is refused.
        """
        stored = [(index, 0.0, 0) for index, _ in list(self._memory.values())]
        if self._store is not None:
            with self._refused_as_error():
                names = self._store.entries(self._refuse)
            stored += filter(None, (self._stored_index(self._store, name) for name in names))
        found = [EntryInfo(i.kind, i.digest, i.nbytes, used, i.components, (*i.files,), own) for i, used, own in stored]
        return sorted(found, key=lambda info: (info.kind, -info.used, info.digest))

    def find(self, prefix: str) -> EntryInfo:
        """The one entry whose digest starts with `prefix`. Raises CacheError if there is none or more than one."""
        found = [info for info in self.ls() if info.digest.startswith(prefix)]
        if len(found) != 1:
            what = f"{len(found)} entries start" if found else "no entry starts"
            raise CacheError(f"compile cache {self.root or '(in memory)'}: {what} with {prefix!r}; `ls` lists them all")
        return found[0]

    def verify(self) -> list[Damage]:
        """Read every entry; damaged ones are reported and, unless the cache is read-only, dropped.

        What is refused is reported, too, and stays. Raises CacheError if the whole cache is refused.
        """
        found: list[Damage] = []
        if self._store is None:
            return found

        def refuse(error: RefusedError) -> None:
            found.append(Damage(error.path, error.reason, refused=True))

        self._remove_stale_once(refuse)
        with self._refused_as_error():
            entries = self._store.entries(refuse)
        for kind, digest in entries:
            place = self._store.place(kind, digest)
            try:
                self._store.check(kind, digest)
            except DamagedEntryError as error:
                self._drop(self._store, kind, digest, error)
                found.append(Damage(error.file, error.reason))
            except RefusedError as error:
                refuse(error)
            except OSError as error:
                found.append(Damage(place, f"cannot be read: {error.strerror}"))
        return found

    def prune(self, max_bytes: int | None = None, max_age: float | None = None) -> list[EntryInfo]:
        """Remove entries unused for more than `max_age` seconds, then the least recently used until `max_bytes` hold.

        What artifacts hold too counts for nothing: removing it frees nothing.

        Returns what was removed. Raises CacheError if the folder is read-only.
        """
        self._refuse_readonly()
        self._remove_stale_once()
        oldest_first = sorted(self.ls(), key=lambda info: (info.used, info.digest))
        total, now = sum(info.nbytes - info.shared for info in oldest_first), time.time()
        removed: list[EntryInfo] = []
        for info in oldest_first:
            too_old = max_age is not None and now - info.used > max_age
            own = info.nbytes - info.shared
            if not too_old and (max_bytes is None or total <= max_bytes or not own):
                continue
            total -= own
            with self._writing():
                if self._store is None:
                    del self._memory[info.kind, info.digest]
                else:
                    self._store.discard(info.kind, info.digest)
                removed.append(info)
        return removed

    def _indexes(self, kind: str | None = None) -> Iterator[Index]:
        """Intact indexes, each read once only; none if the cache is refused."""
        for index, _ in list(self._memory.values()):
            if kind in (None, index.kind):
                yield index
        if self._store is None:
            return
        try:
            names = self._store.entries(self._refuse, kind)
        except RefusedError as error:
            self._refuse(error)
            return
        for name in names:
            if name not in self._known:
                stored = self._stored_index(self._store, name)
                if stored is None:
                    continue
                self._known[name] = stored[0]
            yield self._known[name]

    def _stored_index(self, store: Store, name: tuple[str, str]) -> tuple[Index, float, int] | None:
        """An intact index that fits its place, when its entry was used, and its shared bytes."""
        try:
            stored = store.index(*name)
        except RefusedError as error:
            self._refuse(error)
            return None
        return stored if stored is not None and (stored[0].kind, stored[0].digest) == name else None

    def _load(self, kind: str, digest: str) -> tuple[Entry | None, str]:
        """The entry, or None and what is wrong with the stored one (empty if none is stored). Raises RefusedError."""
        if self._store is None:
            stored = self._memory.get((kind, digest))
            return (stored[1] if stored else None), ""
        place = self._store.place(kind, digest)
        try:
            found = self._store.read(kind, digest)
        except DamagedEntryError as error:
            self._drop(self._store, kind, digest, error)
            return None, f"{error.file}: {error.reason}"
        except OSError as error:
            self._warn(f"{place}: cannot be read: {error.strerror}")
            return None, f"{place}: cannot be read: {error.strerror}"
        if found is None:
            return None, ""
        self._touch(self._store, kind, digest)
        return Entry(found), ""

    def _touch(self, store: Store, kind: str, digest: str) -> None:
        if not self.readonly:
            with suppress(OSError, RefusedError):
                store.touch(kind, digest)

    def _publish(self, store: Store, index: Index, entry: Entry) -> Entry:
        while not store.write(index, entry.files):
            stored, _ = self._load(index.kind, index.digest)
            if stored is not None:
                return stored
            # What was there is damaged: out of the way, or OSError.
            store.discard(index.kind, index.digest)
        return entry

    def _drop(self, store: Store, kind: str, digest: str, error: DamagedEntryError) -> None:
        outcome = "left in place, the cache is read-only"
        self._known.pop((kind, digest), None)
        if not self.readonly:
            try:
                store.discard(kind, digest)
                outcome = "entry dropped"
            except (OSError, RefusedError) as reason:
                why = reason.strerror if isinstance(reason, OSError) else str(reason)
                outcome = f"the entry cannot be removed: {why}"
        _log.warning("compile cache: %s: %s; %s", error.file, error.reason, outcome)

    def _refuse(self, error: RefusedError) -> None:
        self._warn(f"{error}; {_NOT_USED}")

    def _warn(self, message: str) -> None:
        """Say something once."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("compile cache: %s", message)

    @contextmanager
    def _refused_as_error(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            raise CacheError(f"compile cache {self.root}: {error}; {_NOT_USED}") from None

    def _miss(self, kind: str, key: CacheKey) -> str:
        wanted, nearest, fewest = leaves(key.summary), None, 0
        for index in self._indexes(kind):
            stored = self._leaves.get((kind, index.digest))
            if stored is None:
                stored = self._leaves[kind, index.digest] = leaves(index.components)
            distance = len(stored.items() ^ wanted.items())
            if distance and (nearest is None or distance < fewest):
                nearest, fewest = index, distance
        if nearest is None:
            return f"no {kind} entry is stored"
        what = ", ".join(differences(nearest.components, key.summary))
        return f"no {kind} entry has this key; the nearest differs in {what}"

    def _remove_stale_once(self, refuse: Callable[[RefusedError], None] | None = None) -> None:
        if self._store is not None and not self.readonly and not self._stale_removed:
            self._stale_removed = True
            try:
                self._store.remove_stale()
            except RefusedError as error:
                (refuse or self._refuse)(error)

    def _refuse_readonly(self) -> None:
        if self.readonly:
            raise CacheError(f"compile cache {self.root}: opened read-only, so nothing can be stored or removed")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What is refused costs a warning; what cannot be written raises CacheError that names it."""
        try:
            yield
        except RefusedError as error:
            self._refuse(error)
        except OSError as error:
            what = f"cannot write {error.filename}: " if error.filename else ""
            raise CacheError(f"compile cache {self.root}: {what}{error.strerror or error}; {_ADVICE}") from error


def _check_kind(kind: str) -> None:
    if not KIND.fullmatch(kind):
        raise CacheError(f"compile cache: {kind!r} is no kind of entry: lower-case letters, digits and '-' only")


def _check_name(name: str) -> str:
    if not is_file_name(name):
        raise CacheError(f"compile cache: {name!r} cannot be the name of a stored file")
    return name
