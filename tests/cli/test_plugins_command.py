"""`inferir plugins`: what is listed, in which state, and what is loaded for that."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plugin_distributions import write_distribution

from inferir.ir.plugin_kinds import COMPILE, KINDS, SERVE, kinds_of
from inferir.ir.plugin_registry import PluginRegistry

CODE = """
class Executor:
    def check_target(self, target): ...
def route(): ...
print("loaded")
"""


def listed(folder: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """What the plug-ins' code printed, and what the command lists, with `folder` on the path."""
    path = os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [sys.executable, "-P", "-c", "from inferir.cli.main import main; main()", "plugins", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    printed, start, text = done.stdout.partition("[")
    return printed, json.loads(start + text)


def test_plug_ins_are_listed_with_version_phase_and_state(tmp_path: Path) -> None:
    write_distribution(
        tmp_path,
        "acme",
        CODE,
        executors={"fpga": "Executor", "cpu": "Executor", "missing": "Nothing"},
        routes={"embed": "route"},
        stats={"log": "route"},
    )
    printed, found = listed(tmp_path)
    assert printed == "loaded\n"
    states = {(p["kind"], p["name"]): (p["state"], p["reason"]) for p in found}
    assert all((p["origin"], p["runs"]) == ("acme 1.5", "serve") for p in found)
    assert states[("executors", "fpga")] == ("active", "")
    assert states[("executors", "cpu")] == ("left out", "the name 'cpu' is that of a built-in executor")
    state, reason = states[("executors", "missing")]
    assert (state, "AttributeError" in reason) == ("left out", True)
    assert states[("routes", "embed")] == ("closed", "inferir serve --allow-route embed")
    assert states[("stats", "log")] == ("closed", "inferir serve --stat-sink log")
    assert len(found) == 5


def test_what_is_closed_is_not_loaded(tmp_path: Path) -> None:
    write_distribution(tmp_path, "acme", CODE, routes={"embed": "route"})
    assert listed(tmp_path)[0] == ""


def test_a_listing_imports_only_what_it_shows_something_of(tmp_path: Path) -> None:
    code = "import sys\nprint(*sorted({'torch', 'tvm', 'triton', 'transformers'} & {*sys.modules}))\nclass E: ...\n"
    write_distribution(tmp_path, "acme", code, executors={"fpga": "E"})
    assert listed(tmp_path)[0] == "\n"


def test_built_in_entries_are_shown_when_asked_for(tmp_path: Path) -> None:
    assert listed(tmp_path) == ("", [])
    _, found = listed(tmp_path, "--built-in")
    assert {("executors", "cpu"), ("routes", "chat")} <= {(p["kind"], p["name"]) for p in found}
    assert {p["origin"] for p in found} == {"built in"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_table_of_kinds_names_their_registries(kind: Any) -> None:
    module, _, name = kind.registry.partition(":")
    registry = getattr(importlib.import_module(module), name)
    assert isinstance(registry, PluginRegistry)
    assert registry.kind == kind.name


def test_every_kind_runs_somewhere() -> None:
    assert {*kinds_of(COMPILE), *kinds_of(SERVE)} == {k.name for k in KINDS}
    assert "routes" not in kinds_of(COMPILE)


def test_the_page_about_plug_ins_has_the_table_of_kinds() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", page, re.MULTILINE))
    assert rows == {kind.name: ", ".join(kind.phases) for kind in KINDS}
