"""Passes that other distributions add, by entry points of the group `inferir.passes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import PassError
from inferir.ir.plugin_registry import PluginRegistry
from inferir.passes.context import Pass, PassContext, PassOptions

PHASES = ("canonicalise", "recognise", "merge", "insert", "lay out", "fuse")


@dataclass(frozen=True)
class AddedPass:
    """What an entry point names. phase: the one at whose end the pass runs; level: the lowest optimisation level with
    it; make: the pass for the options and context of a pipeline.
    """

    phase: str
    level: int
    make: Callable[[PassOptions, PassContext], Pass]


def _check(value: Any) -> str | None:
    if not isinstance(value, AddedPass):
        return f"it is no AddedPass but of type {type(value).__name__}"
    return None if value.phase in PHASES else f"there is no phase {value.phase!r}; phases are {', '.join(PHASES)}"


PASSES: PluginRegistry[AddedPass] = PluginRegistry("passes", "pass", PassError, _check)


def added(phase: str, options: PassOptions, context: PassContext) -> list[tuple[bool, Pass]]:
    """The added passes of a phase, and whether the level asks for them."""
    entries = [entry for entry in PASSES.load().values() if entry.phase == phase]
    return [(options.opt_level >= entry.level, entry.make(options, context)) for entry in entries]
