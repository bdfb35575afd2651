"""Sizes and durations as typed, and as printed."""

from __future__ import annotations

import pytest

from inferir.cli.console import shortened
from inferir.cli.units import duration_seconds, size_bytes
from inferir.ir.errors import InferirError
from inferir.ir.system.quantities import age, count, seconds, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("2k", 2000), ("1.5 GiB", 3 << 29), ("3MB", 3_000_000), ("1ti", 1 << 40)],
)
def test_size_bytes(text: str, expected: int) -> None:
    assert size_bytes(text, "--max-size") == expected


@pytest.mark.parametrize("text", ["", "lots", "-1", "1 parsec", "1.GB", "GB"])
def test_a_bad_size_names_the_option(text: str) -> None:
    with pytest.raises(InferirError, match="--max-size"):
        size_bytes(text, "--max-size")


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("15min", 900), ("1.5h", 5400), ("30 d", 2_592_000)])
def test_duration_seconds(text: str, expected: float) -> None:
    assert duration_seconds(text, "--older-than") == expected


@pytest.mark.parametrize("text", ["", "30", "1y", "d", "-3h"])
def test_a_bad_duration_names_the_option(text: str) -> None:
    with pytest.raises(InferirError, match="--older-than"):
        duration_seconds(text, "--older-than")


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 50, "3072.0 TiB")],
)
def test_size(nbytes: int, expected: str) -> None:
    assert size(nbytes) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0314, "31 ms"), (2.406, "2.41 s"), (61.27, "61.3 s"), (200, "3 min 20 s")]
)
def test_seconds(value: float, expected: str) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(-1, "0 s"), (59, "59 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 d")]
)
def test_age(value: float, expected: str) -> None:
    assert age(value) == expected


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [(1, "entry", "1 entry"), (2, "entry", "2 entries"), (1234, "bucket", "1,234 buckets")],
)
def test_count(number: int, noun: str, expected: str) -> None:
    assert count(number, noun) == expected


def test_shortened() -> None:
    assert shortened("x" * 100) == "x" * 100
    assert shortened("x" * 1234) == "x" * 70 + "… (1,234 characters)"
