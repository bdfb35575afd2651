"""Groups of options: what a command has of them, and what it gets."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import typer.main

from inferir.cli.main import app
from inferir.cli.shared_options import Fields, compile_fields, expanded
from inferir.compile.compiler import CompileOptions


def pair(left: int = 1, right: str = "x") -> tuple[int, str]:
    return left, right


def test_a_group_becomes_one_value() -> None:
    got: list[Any] = []

    @expanded(both=pair)
    def command(first: int, *, both: tuple[int, str], last: bool = False) -> None:
        got.append((first, both, last))

    assert list(inspect.signature(command).parameters) == ["first", "left", "right", "last"]
    command(first=3, left=5, right="y", last=True)
    assert got == [(3, (5, "y"), True)]


def test_options_have_the_defaults_of_what_they_describe() -> None:
    fields: Fields = compile_fields()
    defaults = dataclasses.asdict(CompileOptions())
    assert fields == {name: defaults[name] for name in fields}


def test_compile_plan_and_tune_agree() -> None:
    root: Any = typer.main.get_command(app)
    shared = set(inspect.signature(compile_fields).parameters)
    options = [
        {p.name: (p.opts, p.default, p.help) for p in root.commands[name].params if p.name in shared}
        for name in ("compile", "plan", "tune")
    ]
    assert options[0] == options[1] == options[2]
    assert set(options[0]) == shared
