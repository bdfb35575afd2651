"""Index arithmetic: every rewriting of an index means the same positions, and the common ones stay plain sums."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.codegen.lower.index import Index, Var, flatten, unflatten
from inferir.ir.errors import CodegenError


def axes(*extents: int) -> list[Index]:
    return [Index.of(Var(f"a{i}", e)) for i, e in enumerate(extents)]


def values(index: Index, extents: list[int]) -> np.ndarray:
    """The positions that the text of an index stands for."""
    grid = np.meshgrid(*(np.arange(e) for e in extents), indexing="ij")
    return np.broadcast_to(eval(index.text(), {f"a{i}": g for i, g in enumerate(grid)}), grid[0].shape)


SHAPES = {
    24: [(24,), (4, 6), (2, 3, 4), (3, 8), (1, 24), (6, 1, 4)],
    60: [(60,), (4, 15), (6, 10), (3, 4, 5), (60, 1)],
    64: [(64,), (8, 8), (2, 32), (4, 2, 8)],
}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_chains_of_reshapes_and_slices_mean_the_same_positions(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(sorted(SHAPES)))
    start = data.draw(st.sampled_from(SHAPES[size]))
    place = tuple(axes(*start))
    shape, expect = start, np.arange(size).reshape(start)
    for _ in range(data.draw(st.integers(1, 3))):
        new = data.draw(st.sampled_from(SHAPES[size]))
        place, shape = unflatten(flatten(place, shape), new), new
        assert all(i.low >= 0 and i.high >= int(values(i, list(start)).max()) for i in place)
    got = sum(
        values(i, list(start)) * stride for i, stride in zip(place, np.cumprod((1, *shape[:0:-1]))[::-1], strict=True)
    )
    assert np.array_equal(got, expect)


def test_a_reshape_and_its_inverse_cancel() -> None:
    (a,) = axes(60)
    assert flatten(unflatten(a, (4, 15)), (4, 15)) == a
    place = axes(6, 10)
    assert flatten(place, (6, 10)).text() == "a0 * 10 + a1"
    odd = unflatten(flatten(place, (6, 10)), (4, 15))
    assert flatten(unflatten(flatten(odd, (4, 15)), (60,)), (60,)).text() == "a0 * 10 + a1"


def test_splitting_along_the_variables_leaves_no_division() -> None:
    (a,) = axes(64)
    whole, rest = (a.scale(8) + 3).divmod(8)
    assert (whole.text(), rest.text()) == ("a0", "3")
    assert (a.divmod(1)[0], a.divmod(1)[1].text(), Index().text()) == (a, "0", "0")


def test_ranges_and_variables() -> None:
    h, d = axes(6, 10)
    index = h.scale(10) + d + -4
    assert (index.low, index.high) == (-4, 55)
    assert (d.scale(-1).low, d.scale(-1).high) == (-9, 0)
    assert index.text() == "a0 * 10 + a1 - 4"
    assert index.divmod(7)[1].variables == {Var("a0", 6), Var("a1", 10)}
    assert (d + d.scale(-1)).terms == ()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 7), st.integers(2, 32), st.integers(0, 8))
def test_neighbours_are_divided_exactly_or_refused(a: int, b: int, offset: int, d: int, span: int) -> None:
    x, y = axes(a, b)
    index = x.scale(8) + y + offset
    try:
        quotient, rest = index.divmod(d, span)
    except CodegenError:
        return
    assert "//" not in quotient.text() + rest.text()
    for at in itertools.product(range(a), range(b), range(span + 1)):
        names = {"a0": at[0], "a1": at[1]}
        value = eval(index.text(), names)
        assert (eval(quotient.text(), names), eval(rest.text(), names) + at[2]) == divmod(value + at[2], d)


def test_neighbours_must_stay_within_a_row() -> None:
    index = Index.of(Var("j", 2), 16)
    assert [i.text() for i in unflatten(index, (2, 32), 15)] == ["0", "j * 16"]
    with pytest.raises(CodegenError, match="does not divide evenly by 24"):
        unflatten(index, (2, 24), 15)
    assert [i.text() for i in unflatten(Index.of(Var("j", 3), 16), (2, 24))] == ["((j * 16) // 24)", "((j * 16) % 24)"]
