"""What an installation without an extra says of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.errors import MissingExtraError
from inferir.ir.system import extras

ROOT = Path(__file__).resolve().parents[3]
IMPORTED_AS = {"apache-tvm": "tvm"}


@pytest.mark.parametrize("extra", extras.LIBRARIES)
def test_the_libraries_are_those_of_the_extra(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", r)[0] for r in project["optional-dependencies"][extra]]
    assert extras.LIBRARIES[extra] == tuple(sorted(IMPORTED_AS.get(name, name) for name in names))
    always = [re.match(r"[\w-]+", r)[0] for r in project["dependencies"]]
    assert not set(names) & set(always)


def test_nothing_lacks_here() -> None:
    assert extras.lacks("compile") is None
    extras.require("compile", "compile")


def test_an_absent_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.LIBRARIES, "compile", ("json", "no_such_library", "sympy"))
    with pytest.raises(MissingExtraError) as raised:
        extras.require("verify", "compile")
    assert str(raised.value) == ("verify needs no_such_library, which is not installed: pip install 'inferir[compile]'")


@pytest.mark.parametrize(
    "command",
    [("compile", "MODEL", "-o", "ART"), ("plan", "MODEL"), ("tune", "MODEL"), ("verify", "ART")],
    ids=lambda c: c[0],
)
def test_commands_that_need_the_compiler(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setitem(extras.LIBRARIES, "compile", ("no_such_library",))
    assert f"error: {command[0]} needs no_such_library" in fails(*command)


def test_the_page_of_an_artifact_without_the_compiler(
    cli: Callable[..., Any], tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.LIBRARIES, "compile", ("no_such_library",))
    result = cli("inspect", tiny_artifact, "--html", tmp_path / "page.html")
    assert result.status == 0
    assert "does not show the graph: drawing it needs no_such_library" in result.err
    page = (tmp_path / "page.html").read_text()
    assert "Not drawn: that needs no_such_library" in page
    assert page.count("<svg") == 1  # the arrow head
