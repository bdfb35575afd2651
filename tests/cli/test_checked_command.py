"""Texts of a command line that are none."""

from __future__ import annotations

import os

import pytest

from inferir.cli.checked_command import _checked, as_text
from inferir.ir.errors import InferirError


def test_text_stays_and_utf8_is_decoded() -> None:
    assert as_text("é", "x") == "é"
    assert as_text("\udcc3\udca9", "x") == "é"  # as an ASCII locale hands over its bytes


@pytest.mark.parametrize("value", [os.fsdecode(b"\xff"), "a\ud800", ["good", "\udcff"], ("\udcff",)])
def test_bytes_that_are_no_text(value: object) -> None:
    with pytest.raises(InferirError, match="--prompt is not UTF-8"):
        _checked(value, "--prompt")


def test_numbers() -> None:
    assert _checked(1.5, "--x") == 1.5
    with pytest.raises(InferirError, match="--x is not a number"):
        _checked(float("nan"), "--x")
