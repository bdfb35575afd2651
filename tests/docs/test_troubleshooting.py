"""Every message that docs/troubleshooting.md quotes is one that the sources can write."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
FOLDERS = ("frontend", "ir", "passes", "codegen", "runtime", "server", "src/inferir")
GAP = "\0"
"""Stands for a value in a template."""

JOINED = (
    "… needs …, which is not installed",
    "cannot allocate …",
    "compile cache: …; entry dropped",
    "…; it is neither used",
    "compile cache …: …; free",
)
"""How messages begin that the sources put together from several texts."""


@cache
def templates() -> tuple[str, ...]:
    """All texts of the sources, `GAP` for what is filled in."""
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(v.value if isinstance(v, ast.Constant) else GAP for v in node.values))  # type: ignore[misc]
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[-.\d]*[sdrg]", GAP, node.value))
    return tuple(found)


def quoted() -> list[str]:
    """Messages of the page: indented lines, and code in the second column of tables."""
    lines = re.findall(r"^(?: {4}| {6})(\S.*)$", PAGE, re.MULTILINE)
    rows = re.findall(r"^\| \d{3} \| `([^`]+)` \|", PAGE, re.MULTILINE)
    inline = re.findall(r"^- `(no … entry [^`]+)`", PAGE, re.MULTILINE)
    return [*lines, *rows, *inline]


def test_there_are_messages() -> None:
    assert len(quoted()) > 50


@pytest.mark.parametrize("message", quoted())
def test_a_message_is_in_the_sources(message: str) -> None:
    """Its fixed parts stand in one text of the sources, in order, with values between them and nothing else."""
    parts = [part for part in message.strip("… ").split("…") if part]
    assert sum(map(len, parts)) > 8, message
    if message.startswith(JOINED):
        assert all(any(part.strip("; ") in template for template in templates()) for part in parts), message
        return
    pattern = re.compile(f"[^\0]*{GAP}.*?".join(map(re.escape, parts)))
    assert any(pattern.search(template) for template in templates()), message
