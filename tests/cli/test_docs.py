"""docs/cli.md, docs/verify.md and docs/artifact.md name what there is: commands, options, variables, bounds, fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from inferir.cli.main import app
from inferir.ir.contract.manifest import Manifest
from inferir.ir.system import env
from inferir.verify.checks import KL_MARGIN, LOGIT_BOUND, ROUNDING, STRAY, TIE
from inferir.verify.thresholds import BOUNDS, TOLERANCES, Tolerance

COMMON = ("--help", "-h", "--json")  # described once, above all commands
DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands() -> Iterator[tuple[str, Any]]:
    """(section of the page, command) of all commands."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        for inner in getattr(command, "commands", {"": command}).values():
            yield name, inner


def section(name: str) -> str:
    """The text below the heading `name`."""
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section {name}"
    return found[1]


@pytest.mark.parametrize(("name", "command"), [pytest.param(n, c, id=f"{n}-{c.name}") for n, c in commands()])
def test_every_option_is_described(name: str, command: Any) -> None:
    text = section(name)
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-") and option not in COMMON:
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), (
                    f"{option} of {name} is not described"
                )


def test_no_option_is_made_up() -> None:
    known = {*COMMON} | {o for _, c in commands() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    named = set(re.findall(r"`(--[a-z-]+)", (DOCS / "cli.md").read_text(encoding="utf-8")))
    assert named <= known


def test_variables() -> None:
    rows = [tuple(c.strip() for c in line.strip("|").split("|")) for line in section("Environment").splitlines()]
    assert [r for r in rows if r[0].startswith("`")] == [
        (f"`{v.name}`", v.values, v.default, v.why) for v in env.VARIABLES
    ]


def test_manifest_fields() -> None:
    text = (DOCS / "artifact.md").read_text(encoding="utf-8")
    fields = [n for line in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for n in re.findall(r"`(\w+)`", line)]
    assert sorted(fields) == sorted(Manifest.__struct_fields__)


def test_bounds() -> None:
    text = " ".join((DOCS / "verify.md").read_text(encoding="utf-8").split())
    assert f"{LOGIT_BOUND:g} times the RMS" in text
    assert f"closer than {TIE:g}" in text
    assert f"{ROUNDING:g} times what" in text
    assert f"{STRAY:g} times its own median" in text
    assert f"{KL_MARGIN:g} times" in text


def test_thresholds() -> None:
    """Every key of a file of thresholds stands in the table, those of tolerances with their defaults."""
    text = (DOCS / "verify.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| .* \| (.*) \|$", text, re.MULTILINE)
    assert [key for key, _ in rows] == [*BOUNDS, *(f"tolerance.{key}" for key in TOLERANCES)]
    defaults = {key.removeprefix("tolerance."): float(value) for key, value in rows if key.startswith("tolerance.")}
    assert Tolerance(**defaults) == Tolerance()
