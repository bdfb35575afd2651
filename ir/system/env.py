"""Every environment variable that Inferir itself reads, in one place. They are for debugging and for placing files.

A variable that is unset or empty has its default; a value that is not understood is an error, never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from inferir.ir.errors import InferirError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True)
class Variable:
    """A variable for `inferir --help`: the values it takes, what holds without it, what it does."""

    name: str
    values: str
    default: str
    why: str


VARIABLES = (
    Variable("INFERIR_DEBUG", "0 or 1", "0", "show the traceback of an internal error, and warnings of libraries"),
    Variable("INFERIR_LOG", "LEVEL and ROOM=LEVEL, with commas", "warning", "what is logged: info,codegen=debug, say"),
    Variable("INFERIR_CACHE", "a folder, or off", "~/.cache/inferir", "where the compile cache is"),
    Variable("XDG_CACHE_HOME", "a folder", "~/.cache", "where the compile cache is if INFERIR_CACHE is not set"),
)


def flag(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """The on/off variable `name`. Raises `InferirError` for anything but 1, true, yes, on, 0, false, no and off."""
    text = environ.get(name, "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise InferirError(f"the environment variable {name} is {environ[name]!r}; set it to 1 or 0")


def debug(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether INFERIR_DEBUG asks for tracebacks."""
    return flag("INFERIR_DEBUG", environ)
