"""Index arithmetic: exact where it claims to be, an error where digits would mix."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferir.codegen.tvm.affine import Affine, Var, flatten, unflatten
from inferir.ir.errors import CodegenError


def _values(index: Affine) -> dict[tuple[int, ...], int]:
    variables = [v for v, _ in index.terms]
    out = {}
    for point in itertools.product(*(range(v.extent) for v in variables)):
        out[point] = eval(index.text(), dict(zip([v.name for v in variables], point, strict=True)))
    return out


def test_text_adds_terms_and_offset() -> None:
    j, h = Var("j", 4), Var("h", 3)
    index = Affine.of(j, 16) + Affine.of(h, 64) + 5
    assert index.text() == "j * 16 + h * 64 + 5"
    assert (index.low, index.high) == (5, 48 + 128 + 5)
    assert Affine().text() == "0"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 7), st.integers(2, 32))
def test_divmod_is_exact_or_refused(a: int, b: int, offset: int, d: int) -> None:
    index = Affine.of(Var("x", a), 8) + Affine.of(Var("y", b), 1) + offset
    try:
        quotient, rest = index.divmod(d)
    except CodegenError:
        return
    for x, y in itertools.product(range(a), range(b)):
        at = {"x": x, "y": y}
        value = eval(index.text(), at)
        assert (eval(quotient.text(), at), eval(rest.text(), at)) == divmod(value, d)


def test_lanes_must_stay_within_a_row() -> None:
    index = Affine.of(Var("j", 2), 16)
    assert [i.text() for i in unflatten(index, (2, 32), 15)] == ["0", "j * 16"]
    with pytest.raises(CodegenError, match="does not divide evenly by 24"):
        unflatten(index, (2, 24), 15)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_flatten_and_unflatten_are_inverse(shape: list[int]) -> None:
    index = tuple(Affine.of(Var(f"i{k}", d)) for k, d in enumerate(shape))
    back = unflatten(flatten(index, shape), shape)
    for i, j in zip(index, back, strict=True):
        for point, value in _values(i).items():
            assert _values(j).get(point if j.terms else (), value) == value
