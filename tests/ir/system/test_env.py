"""Environment variables: values that are understood, and an error for any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferir.ir.errors import InferirError
from inferir.ir.system import env


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("On", True), ("0", False), ("false", False), ("", False)])
def test_flag(text: str, expected: bool) -> None:
    assert env.flag("INFERIR_DEBUG", {"INFERIR_DEBUG": text}) is expected


def test_an_unset_flag_is_off() -> None:
    assert not env.debug({})


def test_a_bad_value_is_an_error() -> None:
    with pytest.raises(InferirError, match=r"INFERIR_DEBUG is 'maybe'"):
        env.debug({"INFERIR_DEBUG": "maybe"})


def test_the_command_line_reports_a_bad_value(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERIR_DEBUG", "loud")
    assert "INFERIR_DEBUG is 'loud'; set it to 1 or 0" in fails("cache", "ls")


def test_help_names_every_variable(cli: Callable[..., object]) -> None:
    text = str(cli("--help"))
    assert all(v.name in text for v in env.VARIABLES)
