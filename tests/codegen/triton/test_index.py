"""Index arithmetic: every rewriting of an index means the same positions, and the common ones stay plain sums."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.codegen.triton.index import Axis, Index, flatten, unflatten


def axes(*extents: int) -> list[Axis]:
    return [Axis(f"a{i}", e, i, 1 << (e - 1).bit_length(), False) for i, e in enumerate(extents)]


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
    place = tuple(Index.of(a) for a in axes(*start))
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
    assert flatten(unflatten(Index.of(a), (4, 15)), (4, 15)) == Index.of(a)
    h, d = axes(6, 10)
    assert flatten((Index.of(h), Index.of(d)), (6, 10)).text() == "a0 * 10 + a1"
    odd = unflatten(flatten((Index.of(h), Index.of(d)), (6, 10)), (4, 15))
    assert flatten(unflatten(flatten(odd, (4, 15)), (60,)), (60,)).text() == "a0 * 10 + a1"


def test_splitting_along_the_axes_leaves_no_division() -> None:
    (a,) = axes(64)
    whole, rest = Index.of(a).scale(8).shift(3).divmod(8)
    assert (whole.text(), rest.text()) == ("a0", "3")
    assert Index.of(axes(1)[0]).text() == "0"


def test_ranges_and_axes() -> None:
    h, d = axes(6, 10)
    index = Index.of(h).scale(10) + Index.of(d).shift(-4)
    assert (index.low, index.high) == (-4, 55)
    assert index.positions == {0, 1}
    assert index.text() == "a0 * 10 + a1 - 4"
    assert index.divmod(7)[1].axes == {h, d}
    assert (Index.of(d) + Index.of(d).scale(-1)).terms == ()
