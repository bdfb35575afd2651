"""Named things that other distributions may add to: one class for every registry of the system.

What is built in is added by name, as an object or as the place ("package.module:name") where it is imported from on
first use. A distribution adds an entry by an entry point of the group `inferir.KIND`, for instance

    [project.entry-points."inferir.passes"]
    fuse-bias = "acme_passes.fuse_bias:FuseBias"

Nothing of a distribution is imported before it is asked for. An entry whose import fails, or whose name is taken, is
left out with a warning that says why; all others work. Asking for it by name is an error with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from inferir.ir.errors import PluginError
from inferir.ir.system.error_report import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILT_IN = "built in"
ACTIVE, KNOWN, LEFT_OUT = "active", "not loaded", "left out"

T = TypeVar("T")


class PluginWarning(UserWarning):
    """An entry of another distribution is left out; the message names it and says why."""


@dataclass(frozen=True)
class PluginInfo:
    """One entry, for people. origin: "built in", or distribution and version; state: `ACTIVE`, `KNOWN` (nothing asked
    for it yet) or `LEFT_OUT`, with the reason.
    """

    name: str
    origin: str
    state: str
    reason: str = ""

    @property
    def outside(self) -> bool:
        """Whether another distribution brings it."""
        return self.origin != BUILT_IN

    @property
    def distribution(self) -> str:
        return self.origin.rpartition(" ")[0] or self.origin

    @property
    def version(self) -> str:
        return self.origin.rpartition(" ")[2]


class _Missing:
    pass


@dataclass
class _Entry:
    origin: str
    load: Callable[[], Any]
    value: Any = _Missing
    reason: str = ""

    @property
    def state(self) -> str:
        return LEFT_OUT if self.reason else KNOWN if self.value is _Missing else ACTIVE


class PluginRegistry(Generic[T]):
    """Entries of type `T` by name, built-in ones first.

    kind: the last part of the entry points' group, such as "backends"; noun: one of them in messages, such as
    "backend"; error: what is raised for a name that is not there; check: why a loaded object is no `T`, or None.
    """

    def __init__(
        self,
        kind: str,
        noun: str,
        error: type[Exception] = PluginError,
        check: Callable[[Any], str | None] = lambda value: None,
    ) -> None:
        self.kind, self.noun = kind, noun
        self._error, self._check = error, check
        self._entries: dict[str, _Entry] = {}
        self._refused: list[PluginInfo] = []
        self._warned: set[tuple[str, str]] = set()
        self._scanned = False

    def add(self, name: str, value: T | str) -> None:
        """Add a built-in entry: an object, or the place of one. Raises `PluginError` for a name that is taken."""
        if name in self._entries:
            raise PluginError(f"{self.noun} {name!r} is defined twice")
        if isinstance(value, str):
            self._entries[name] = _Entry(BUILT_IN, lambda: _import(value))
        else:
            self._entries[name] = _Entry(BUILT_IN, lambda: value, value)

    def get(self, name: str) -> T:
        """The entry `name`. Raises the registry's error: for an unknown name, with all known ones; for an entry that
        was left out, with the reason.
        """
        found = self._entries.get(name) or self._scan().get(name)  # what is built in needs no look at others
        if found is None:
            raise self._error(f"unknown {self.noun} {name!r}; known: {', '.join(self.names()) or 'none'}")
        self._load(name, found)
        if found.reason:
            raise self._error(f"{self.noun} {name!r} of {found.origin} is not usable: {found.reason}")
        return cast(T, found.value)

    def names(self) -> tuple[str, ...]:
        """Names of all entries that are not left out, so far as is known without loading them."""
        return tuple(name for name, entry in self._scan().items() if not entry.reason)

    def load(self, names: Iterable[str] | None = None) -> dict[str, T]:
        """All entries, or those of `names` that exist, by name; what cannot be loaded is left out with a warning."""
        chosen = None if names is None else set(names)
        wanted = {n: e for n, e in self._scan().items() if chosen is None or n in chosen}
        for name, entry in wanted.items():
            self._load(name, entry)
        for info in self.left_out():
            if chosen is None or info.name in chosen:
                self._warn(info)
        return {name: entry.value for name, entry in wanted.items() if not entry.reason}

    def all(self) -> list[PluginInfo]:
        """What there is and in which state; loads nothing."""
        entries = [PluginInfo(name, e.origin, e.state, e.reason) for name, e in self._scan().items()]
        return [*entries, *self._refused]

    def outside(self, name: str) -> PluginInfo | None:
        """The entry `name` if another distribution brings it and it is not left out; loads nothing."""
        return next((i for i in self.all() if i.name == name and i.outside and i.state != LEFT_OUT), None)

    def left_out(self) -> list[PluginInfo]:
        """Entries of other distributions that are known to be of no use, with the reasons; loads nothing."""
        return [info for info in self.all() if info.state == LEFT_OUT]

    def leave_out(self, name: str, reason: str) -> None:
        """Leave out an entry of another distribution, for a reason that its registry cannot know."""
        entry = self._scan()[name]
        if entry.origin != BUILT_IN:
            entry.reason = reason

    def _warn(self, info: PluginInfo) -> None:
        if (info.name, info.origin) not in self._warned:
            self._warned.add((info.name, info.origin))
            message = f"the {self.noun} {info.name!r} of {info.origin} is left out: {info.reason}"
            warnings.warn(message, PluginWarning, stacklevel=3)

    def _load(self, name: str, entry: _Entry) -> None:
        if entry.state is not KNOWN:
            return
        if entry.origin == BUILT_IN:
            entry.value = entry.load()  # a fault of our own is no reason to go on
            return
        try:
            value = entry.load()
            entry.reason = self._check(value) or ""
        except Exception as error:
            entry.reason = one_line(f"{type(error).__name__}: {error}")
        else:
            entry.value = value

    def _scan(self) -> dict[str, _Entry]:
        """All entries, those of other distributions included, which are looked for once."""
        if not self._scanned:
            self._scanned = True
            for point in _entry_points().get(f"inferir.{self.kind}", ()):
                self._add_point(point)
        return self._entries

    def _add_point(self, point: EntryPoint) -> None:
        origin = _origin(point)
        taken = self._entries.get(point.name)
        if taken is None:
            self._entries[point.name] = _Entry(origin, point.load)
        elif taken.origin == BUILT_IN:
            reason = f"the name {point.name!r} is that of a built-in {self.noun}"
            self._refused.append(PluginInfo(point.name, origin, LEFT_OUT, reason))
        else:  # which one is meant cannot be told
            taken.reason = f"{taken.origin} and {origin} both bring a {self.noun} {point.name!r}; remove one of them"


def _import(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else f"unknown ({point.value})"


def any_plugins() -> bool:
    """Whether any distribution adds anything."""
    return bool(_entry_points())


@cache
def _entry_points() -> dict[str, list[EntryPoint]]:
    """Entry points of this system's groups, by group; distributions by name, so that the order is always the same."""
    from importlib.metadata import distributions

    found: dict[str, dict[tuple[str, str, str], EntryPoint]] = {}
    for dist in distributions():
        for point in dist.entry_points:
            if point.group.startswith("inferir."):
                key = (dist.name, point.name, point.value)
                found.setdefault(point.group, {}).setdefault(key, point)  # the first on the path is what is imported
    return {group: [points[key] for key in sorted(points)] for group, points in found.items()}


def plugin_sources(kinds: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """The source of every distribution with entries of these kinds: folders or files by "name version"."""
    found: dict[str, set[Path]] = {}
    for kind in kinds:
        for point in _entry_points().get(f"inferir.{kind}", ()):
            found.setdefault(_origin(point), set()).update(_package(point))
    return {origin: tuple(sorted(paths)) for origin, paths in sorted(found.items())}


def _package(point: EntryPoint) -> Iterator[Path]:
    """The outermost package of an entry that has code of its own, found without running any of it; none if its module
    is missing, for then nothing comes of it.
    """
    parts = point.module.split(".")
    for depth in range(1, len(parts) + 1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:depth]))
        except ImportError:
            return
        if spec is None:
            return
        if spec.origin is not None:
            file = Path(spec.origin)
            yield file.parent if spec.submodule_search_locations is not None else file
            return
