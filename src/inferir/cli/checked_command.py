"""A command whose texts are text: what its options and arguments hold is valid Unicode, unless it names a file.

The system hands over bytes. Python keeps those that its locale cannot decode as lone surrogates, with which no
tokenizer and no JSON can do anything.
"""

from __future__ import annotations

import math
import os
from typing import Any

import typer
from typer.core import TyperCommand

from inferir.ir.errors import InferirError

_NO_TEXT = frozenset({"model", "uds"})
"""Parameters declared as text that may be the name of a file, whose bytes are anybody's choice."""


class Command(TyperCommand):
    """Raises `InferirError` naming the parameter, before the command begins, for text that is none and for NaN."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        for parameter in self.params:
            name = parameter.name
            if name is not None and name not in _NO_TEXT:
                ctx.params[name] = _checked(ctx.params.get(name), _called(parameter))
        return super().invoke(ctx)


def _called(parameter: Any) -> str:
    """What messages call an option or argument."""
    options = [o for o in parameter.opts if o.startswith("-")]
    return str(max(options, key=len)) if options else f"the {parameter.name}"


def _checked(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return as_text(value, name)
    if isinstance(value, float) and math.isnan(value):
        raise InferirError(f"{name} is not a number")
    if isinstance(value, list | tuple):
        return type(value)(_checked(v, name) for v in value)
    return value


def as_text(value: str, name: str) -> str:
    """`value` if it is text; UTF-8 that the locale did not expect is decoded. Raises `InferirError` for other bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(value).decode()
        except UnicodeError:
            raise InferirError(f"{name} is not UTF-8") from None
    return value
