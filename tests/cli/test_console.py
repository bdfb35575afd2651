"""Tables and JSON on standard output, whatever it can write."""

from __future__ import annotations

import io
import json
import sys

import pytest

from inferir.cli.console import plain, print_json, shortened, show, table


def test_markup_in_values_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(table("T [x]", ("name", "n"), [("[bold]a", "1")], right=("n",)), plain("[red]b"))
    out = capsys.readouterr().out
    assert "[bold]a" in out
    assert out.endswith("\n\n[red]b\n")
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize(("encoding", "text"), [("utf-8", "é"), ("ascii", "\\u00e9")])
def test_json_escapes_what_the_encoding_lacks(encoding: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
    print_json({"a": "é"})
    sys.stdout.flush()
    assert text in raw.getvalue().decode(encoding)
    assert json.loads(raw.getvalue()) == {"a": "é"}


@pytest.mark.parametrize(("length", "kept"), [(100, 100), (101, 70)])
def test_shortened(length: int, kept: int) -> None:
    assert shortened("x" * length).count("x") == kept
