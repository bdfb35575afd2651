"""Prompts and what goes with each of them, in the forms that callers give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferir.ir.errors import RequestError

Prompt = str | Sequence[int]


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is text or a flat list of ids; anything else is a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def per_prompt(name: str, value: Any, count: int, kind: type, default: Any) -> list[Any]:
    """`value` for each of `count` prompts: one for all (None: `default`), or a list with one each."""
    if value is None or isinstance(value, kind):
        return [default if value is None else value] * count
    if not isinstance(value, list | tuple):
        raise RequestError(f"{name} must be one {kind.__name__} or a list of them, not {value!r}", name)
    if len(value) != count:
        shown = "sampling parameters" if name == "params" else f"values of {name}"
        raise RequestError(f"{len(value)} {shown} were given for {count} prompts", name)
    return list(value)
