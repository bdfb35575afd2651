"""Symbolic dimensions.

A dimension is an `int` or a sympy expression over the symbols of `inferir.ir.contract.symbols`, which are positive
integers that are known when a step runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import sympy

from inferir.ir.contract import symbols
from inferir.ir.errors import ParseError

Dim: TypeAlias = int | sympy.Expr

SYMBOLS: dict[str, sympy.Symbol] = {name: sympy.Symbol(name, integer=True, positive=True) for name in symbols.SYMBOLS}

T, S, R, G, A, E = (SYMBOLS[name] for name in ("T", "S", "R", "G", "A", "E"))
MB, NB = SYMBOLS["MB"], SYMBOLS["NB"]

_EXPR = re.compile(r"^[A-Za-z0-9_+\-*/() ]+$")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTIONS = frozenset({"floor", "ceiling"})


def as_dim(value: object) -> Dim:
    """Normalise to a Python int where the value is a known integer, else a sympy expression."""
    if isinstance(value, bool):
        raise TypeError("a dimension cannot be a bool")
    if isinstance(value, int):
        return value
    if isinstance(value, sympy.Symbol):
        return value
    if isinstance(value, sympy.Expr):
        expr = sympy.expand(value)
        return int(expr) if expr.is_Integer else expr
    raise TypeError(f"not a dimension: {value!r}")


def dim_str(dim: Dim) -> str:
    if isinstance(dim, sympy.Symbol):
        return str(dim.name)  # the common case; sympy's printer is slow
    return str(dim).replace(" ", "")


def parse_dim(text: str) -> Dim:
    """Parse the output of `dim_str`. Raises `ParseError` for unknown symbols."""
    text = text.strip()
    if text.lstrip("-").isdigit():
        return int(text)
    if text in SYMBOLS:
        return SYMBOLS[text]
    if not _EXPR.match(text):
        raise ParseError(f"not a dimension: {text!r}")
    unknown = set(_WORD.findall(text)) - SYMBOLS.keys() - _FUNCTIONS  # before sympify, which evaluates names as Python
    if unknown:
        raise ParseError(f"unknown dimension symbol {sorted(unknown)[0]!r} in {text!r}")
    try:
        out = as_dim(sympy.sympify(text, locals=dict(SYMBOLS)))
    except (sympy.SympifyError, SyntaxError, TypeError):
        raise ParseError(f"not a dimension: {text!r}") from None
    if not isinstance(out, int) and out.has(sympy.zoo, sympy.nan):
        raise ParseError(f"not a dimension: {text!r}")
    return out


def substitute(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer value of `dim` under symbol values. Raises `KeyError` naming a symbol without value."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, sympy.Symbol):
        return values[str(dim)]
    missing = [str(s) for s in dim.free_symbols if str(s) not in values]
    if missing:
        raise KeyError(missing[0])
    return int(dim.subs({s: values[str(s)] for s in dim.free_symbols}))


def numel(shape: tuple[Dim, ...]) -> Dim:
    """Product of the dimensions."""
    static = 1
    symbolic: Dim = 1
    for dim in shape:
        if isinstance(dim, int):
            static *= dim
        else:
            symbolic = dim if symbolic == 1 else symbolic * dim
    if symbolic == 1:
        return static
    return symbolic if static == 1 else as_dim(symbolic * static)


def with_symbol(attr: Any, old: sympy.Symbol, new: sympy.Symbol) -> Any:
    """An attribute with the dimension `new` in place of `old`."""
    if isinstance(attr, sympy.Expr):
        return attr.subs(old, new)
    if isinstance(attr, tuple):
        return tuple(with_symbol(a, old, new) for a in attr)
    return attr
