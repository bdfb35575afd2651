"""The page about structured output says what the code says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from inferir.runtime.structured import GrammarLimits
from inferir.runtime.structured.gbnf import MAX_RULES
from inferir.runtime.structured.json_schema import (
    FORMATS,
    MAX_ALTERNATIVES,
    MAX_DEPTH,
    MAX_MULTIPLE,
    MAX_PATTERN_PROPERTIES,
    MAX_PROPERTIES,
)
from inferir.runtime.structured.schema_form import MAX_WHITESPACE
from inferir.runtime.structured.spec import KINDS, MAX_BYTES, MAX_CHOICES, MAX_REGEX_BYTES
from inferir.runtime.structured.tool_parser import MAX_HEAD
from inferir.runtime.text.tool_style import STYLES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "structured-output.md").read_text(encoding="utf-8")


def first_column(header: str) -> list[str]:
    table = PAGE.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_tables() -> None:
    assert first_column("kind | value | notes") == list(KINDS)
    assert first_column("style | what a call looks like") == list(STYLES)
    limits = {f.name: f.default for f in dataclasses.fields(GrammarLimits)}
    assert first_column("limit | default | meaning") == list(limits)
    for name, value in limits.items():
        assert f"| `{name}` | `{value}` |" in PAGE


def test_numbers() -> None:
    for text in (f"{MAX_BYTES >> 10} KiB of JSON", f"{MAX_REGEX_BYTES >> 10} KiB of regex", f"{MAX_CHOICES:,} choices"):
        assert text in PAGE
    assert f"at most {MAX_WHITESPACE} blanks" in PAGE
    assert f"at most {MAX_HEAD}\ncharacters" in PAGE
    for name in FORMATS:
        assert f"`{name}`" in PAGE
    for text in (
        f"{MAX_RULES:,} rules",
        f"{MAX_ALTERNATIVES} combinations",
        f"beyond {MAX_MULTIPLE:,} units",
        f"{MAX_PATTERN_PROPERTIES} patterns of properties, {MAX_DEPTH} levels",
        f"{MAX_PROPERTIES} properties per object",
    ):
        assert text in PAGE
