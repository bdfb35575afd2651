"""Passes that other distributions add, by entry points of the group `inferir.passes`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import PassError
from inferir.ir.plugin_registry import PluginRegistry
from inferir.ir.system.error_report import one_line
from inferir.passes.context import Pass, PassContext, PassOptions

PHASES = ("canonicalise", "recognise", "merge", "insert", "lay out", "fuse")


@dataclass(frozen=True)
class AddedPass:
    """What an entry point names, which has the name of the pass. phase: the one at whose end the pass runs; level: the
    lowest optimisation level with it, None if it only runs where it is asked for by name; make: the pass for the
    options and context of a pipeline.
    """

    phase: str
    level: int | None
    make: Callable[[PassOptions, PassContext], Pass]


def _check(value: Any) -> str | None:
    if not isinstance(value, AddedPass):
        return f"it is no AddedPass but of type {type(value).__name__}"
    return None if value.phase in PHASES else f"there is no phase {value.phase!r}; phases are {', '.join(PHASES)}"


PASSES: PluginRegistry[AddedPass] = PluginRegistry("passes", "pass", PassError, _check)


Added = Mapping[str, Sequence[tuple[bool, Pass]]]
"""By phase: passes, and whether they are wanted."""


def added(options: PassOptions, context: PassContext, own: Container[str]) -> Added:
    """The passes of other distributions, and whether level or name asks for them; those that are disabled are not
    loaded. own: the names of this system's passes, which no other may have.

    Raises `PassError` for one that is asked for by name and cannot be used, and for one that cannot be made.
    """
    for name in PASSES.names():
        if name in own:
            PASSES.leave_out(name, "that is the name of a pass of this system")
    for name in sorted(options.enabled):
        PASSES.get(name)
    found: dict[str, list[tuple[bool, Pass]]] = {}
    for name, entry in PASSES.load(info.name for info in PASSES.all() if info.name not in options.disabled).items():
        wanted = name in options.enabled or (entry.level is not None and options.opt_level >= entry.level)
        found.setdefault(entry.phase, []).append((wanted, _make(name, entry, options, context)))
    return found


def _make(name: str, entry: AddedPass, options: PassOptions, context: PassContext) -> Pass:
    try:
        made = entry.make(options, context)
        found = made.name
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise PassError(f"the pass {name!r} of {origin_of(name)} cannot be made: {reason}") from error
    if found != name:
        raise PassError(f"the pass {name!r} of {origin_of(name)} calls itself {found!r}; it must have one name")
    return made


def origin_of(name: str) -> str:
    """The distribution and version that bring a pass, "" for one of this system."""
    info = PASSES.outside(name)
    return info.origin if info is not None else ""


def added_names() -> tuple[str, ...]:
    """Names of all passes that other distributions bring, those that are left out among them; loads nothing."""
    return tuple(dict.fromkeys(info.name for info in PASSES.all()))
