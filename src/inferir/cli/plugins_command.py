"""`inferir plugins`: what other installed distributions add, and whether it takes part."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from inferir.cli import arguments as a
from inferir.cli.console import plain, print_json, show, table
from inferir.ir.plugin_kinds import KINDS, PluginKind
from inferir.ir.plugin_registry import BUILT_IN, LEFT_OUT, PluginInfo, PluginRegistry, PluginWarning
from inferir.ir.system.error_report import one_line

CLOSED = "closed"


@dataclass(frozen=True)
class Plugin:
    """origin: "built in", or distribution and version. runs: in which phases. state: "active", "closed", "left out" or,
    of what is built in, also "not loaded".
    """

    kind: str
    name: str
    origin: str
    runs: str
    state: str
    reason: str


def plugins(
    json: Annotated[bool, a.flag("Print everything as JSON.", "--json")] = False,
    built_in: Annotated[bool, a.flag("Show what is built in too.", "--built-in")] = False,
) -> None:
    """List installed plug-ins: passes, backends, routes and more that other distributions bring."""
    found = [p for kind in KINDS for p in _entries(kind, built_in) if built_in or p.origin != BUILT_IN]
    if json:
        print_json([asdict(p) for p in found])
    elif not found:
        show(plain("no plug-ins are installed; --built-in shows what is built in"))
    else:
        columns = ("kind", "name", "from", "runs in", "state", "reason")
        show(table("Plug-ins", columns, [(p.kind, p.name, p.origin, p.runs, p.state, p.reason) for p in found]))


def _entries(kind: PluginKind, built_in: bool) -> Iterator[Plugin]:
    """Entries of a kind. Those of other distributions are loaded, but for those that are closed."""
    registry: PluginRegistry[Any] = PluginRegistry(kind.name, "entry")
    if not built_in and not registry.all():
        return  # so that no registry is imported, and what it needs, without anything to show of it
    problem = ""
    try:
        registry = kind.load_registry()
    except ImportError as error:
        problem = one_line(str(error))
    if not problem and not kind.allow:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # the listing says it
            registry.load([info.name for info in registry.all() if info.outside])
    for info in registry.all():
        state, reason = _state(kind, info, problem)
        yield Plugin(kind.name, info.name, info.origin, ", ".join(kind.phases), state, reason)


def _state(kind: PluginKind, info: PluginInfo, problem: str) -> tuple[str, str]:
    if problem:
        return LEFT_OUT, problem
    if kind.allow and info.outside and info.state != LEFT_OUT:
        return CLOSED, f"inferir serve {kind.allow} {info.name}"
    return info.state, info.reason
