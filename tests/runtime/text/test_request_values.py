"""Integers and texts as requests hold them."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.ir.errors import RequestError
from inferir.runtime.text.request_values import check_text, integral, integrals


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((5, 5), (5.0, 5), (-3.0, -3), (10**30, 10**30), (5.5, None), (float("inf"), None), (float("nan"), None)),
        *((True, None), ("5", None), (None, None), ([5], None)),
    ],
)
def test_an_integer(value: Any, expected: int | None) -> None:
    found = integral(value)
    assert found == expected
    assert type(found) is type(expected)
    assert integrals([value]) == (None if expected is None else [expected])


def test_integers() -> None:
    assert integrals((1, 2.0)) == [1, 2]
    assert integrals([]) == []
    assert integrals([1, 2.5]) is None


@pytest.mark.parametrize("text", ["", "abc", "é ✓", "\U0001f600", "\0"])
def test_texts(text: str) -> None:
    check_text(text, "f")


@pytest.mark.parametrize(("value", "reason"), [("a\udc80", "half of a surrogate pair"), (b"a", "text, not bytes")])
def test_what_is_no_text(value: object, reason: str) -> None:
    with pytest.raises(RequestError, match=f"f .*{reason}") as e:
        check_text(value, "f")
    assert e.value.field == "f"
