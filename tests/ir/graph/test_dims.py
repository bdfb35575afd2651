"""Dimensions: normalisation, text, values and products."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from inferir.ir.errors import ParseError
from inferir.ir.graph.dims import MB, NB, SYMBOLS, Dim, S, T, as_dim, dim_str, numel, parse_dim, substitute

VALUES = {name: 2 * i + 3 for i, name in enumerate(SYMBOLS)}


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """Polynomials with integer coefficients in one or two symbols, and plain integers."""
    out: Dim = draw(st.integers(0, 4096))
    for _ in range(draw(st.integers(0, 2))):
        symbol = SYMBOLS[draw(st.sampled_from(sorted(SYMBOLS)))]
        out = out + draw(st.integers(1, 64)) * symbol ** draw(st.integers(1, 2))
    return as_dim(out)


@given(dims())
def test_text_round_trips(dim: Dim) -> None:
    assert parse_dim(dim_str(dim)) == dim


@given(dims(), dims())
def test_arithmetic_commutes_with_substitution(a: Dim, b: Dim) -> None:
    assert substitute(as_dim(a + b), VALUES) == substitute(a, VALUES) + substitute(b, VALUES)
    assert substitute(as_dim(a * b), VALUES) == substitute(a, VALUES) * substitute(b, VALUES)


def test_known_integers_become_python_ints() -> None:
    assert type(as_dim(sympy.Integer(4))) is int
    assert type(as_dim(T + 3 - T)) is int
    assert as_dim(T - T + 2) == 2


@pytest.mark.parametrize("bad", [True, 1.0, "T", None])
def test_other_objects_are_no_dimensions(bad: object) -> None:
    with pytest.raises(TypeError, match="dimension"):
        as_dim(bad)


@pytest.mark.parametrize("text", ["X", "T+Q", "exit()", "print(T)", "T[0]", "'T'", "T+", "", "(T", "1/0*T"])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_dim(text)


def test_text_is_never_run_as_python(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ParseError, match="unknown dimension symbol 'print'"):
        parse_dim("print(T)")
    assert capsys.readouterr().out == ""


def test_a_symbol_without_value_is_named() -> None:
    with pytest.raises(KeyError, match="MB"):
        substitute(2 * MB + T, {"T": 1})
    with pytest.raises(KeyError, match="NB"):
        substitute(NB, {})


def test_numel_multiplies_static_and_symbolic_sizes() -> None:
    assert numel(()) == 1
    assert numel((3, 4)) == 12
    assert numel((T, 4, S, 2)) == 8 * T * S
    assert numel((T, 0)) == 0
