"""The tutorial is true: what docs/extending.md says to write and to run is written and run here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from plugin_environment import Environment
from tutorial_page import Command, File, difference, steps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
MODULES = {"python": "", "pip": "-m pip", "inferir": "-P -m inferir"}
"""Commands of a newcomer's environment, as arguments of its interpreter."""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """What the shell of a newcomer has: an environment with this Inferir, and a compile cache with nothing in it."""
    made = Environment(tmp_path / "env")
    for name, arguments in MODULES.items():
        command = made.python.with_name(name)
        python = made.python.with_name("python3")
        command.unlink(missing_ok=True)
        command.write_text(f'#!/bin/sh\nexec {python} {arguments} "$@"\n')
        command.chmod(0o755)
    places = f"{made.python.parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    return made.variables(PATH=places, INFERIR_CACHE=str(tmp_path / "cache"), PYTEST_ADDOPTS="", **offline)


def test_the_page_is_a_session_that_works(tmp_path: Path, variables: dict[str, str]) -> None:
    """Every command prints what the page shows, but for numbers, and fails only where the page shows a failure."""
    folder = tmp_path / "work"
    folder.mkdir()
    done = list(steps(PAGE))
    for step in done:
        if isinstance(step, File):
            (folder / step.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / step.path).write_text(step.text, encoding="utf-8")
            continue
        ended = subprocess.run(
            ["bash", "-c", step.line], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        said = f"$ {step.line}\n{ended.stdout}{ended.stderr}"
        problem = difference(step.output, ended.stdout)
        assert problem is None, f"{said}\n{problem}"
        shows_failure = any(line.startswith(("FAILED", "FAULT")) for line in step.output)
        assert (ended.returncode != 0) == shows_failure, said
    assert sum(isinstance(step, Command) for step in done) > 20


def test_the_pass_is_as_short_as_the_page_says() -> None:
    (text,) = {step.text for step in steps(PAGE) if isinstance(step, File) and step.path.endswith("look_up_late.py")}
    assert len(text.splitlines()) <= 40
