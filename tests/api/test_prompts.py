"""Prompts and what goes with each of them, in the forms that callers give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferir.api.prompts import per_prompt, prompt_list
from inferir.ir.errors import RequestError


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        ((np.int64(1),), [(np.int64(1),)]),
        (["a", [1]], ["a", [1]]),
        ([[1], [2]], [[1], [2]]),
        ([], []),
    ],
)
def test_one_prompt_or_several(given: Any, listed: list[Any]) -> None:
    assert prompt_list(given) == listed


@pytest.mark.parametrize(("value", "values"), [(None, [7, 7]), (3, [3, 3]), ([1, 2], [1, 2]), ((1, None), [1, None])])
def test_a_value_for_all_or_one_each(value: Any, values: list[Any]) -> None:
    assert per_prompt("priority", value, 2, int, 7) == values


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("priority", "x", "priority must be one int or a list of them, not 'x'"),
        ("priority", [1], "1 values of priority were given for 2 prompts"),
        ("params", [1, 2, 3], "3 sampling parameters were given for 2 prompts"),
    ],
)
def test_what_fits_no_prompts(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        per_prompt(name, value, 2, int, 0)
    assert refused.value.field == name
