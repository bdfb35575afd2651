"""Bounds of a verification, on numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from inferir.verify.cases import Part
from inferir.verify.checks import Far, Greedy, Observed, beyond, measure, scale_of

REFERENCE = [np.array([[0.0, 4.0], [4.0, 0.0]], np.float32)]
PART = Part("t1", "decode", 0, 0, 2)


def seen(*rows: list[float]) -> Observed:
    return Observed([[1, 2]], [np.array(rows, np.float32)], parts=[PART])


def test_equal_logits_have_no_distance() -> None:
    (row,) = measure(seen([0, 4], [4, 0]), REFERENCE, None).rows
    assert (row.bucket, row.kind, row.positions) == ("t1", "decode", 2)
    assert (row.max_abs, row.mean_abs, row.kl, row.top1, row.eager_kl) == (0, 0, 0, 1, None)


def test_what_another_step_changed_counts_in_its_own_row() -> None:
    observed = seen([0, 4], [4, 0])
    observed.changed["t1", "decode", 0, 1] = np.array([0, 4], np.float32)
    (row,) = measure(observed, REFERENCE, None).rows
    assert (row.max_abs, row.top1) == (4, 0.5)
    assert beyond(observed, REFERENCE, 1.0) == [Far(0, 1, 4.0)]


def test_the_farthest_comes_first() -> None:
    assert beyond(seen([0, 6], [9, 0]), REFERENCE, 1.0) == [Far(0, 1, 5.0), Far(0, 0, 2.0)]
    assert beyond(seen([0, 6], [9, 0]), REFERENCE, 5.0) == []


def test_scale() -> None:
    assert scale_of(REFERENCE) == pytest.approx(8**0.5)
    assert scale_of([np.zeros((1, 2), np.float32)]) == 1.0


@pytest.mark.parametrize(
    ("found", "same", "excused"),
    [
        (Greedy(3, 5, 5), True, False),
        (Greedy(3, 5, 4, gap=1e-5), False, True),
        (Greedy(3, 5, 4, gap=1e-3), False, False),
    ],
)
def test_greedy(found: Greedy, same: bool, excused: bool) -> None:
    assert (found.same, found.excused) == (same, excused)


@pytest.mark.parametrize(("rounding", "excused"), [(None, False), (0.1, False), (0.125, True)])
def test_rounding_excuses(rounding: float | None, excused: bool) -> None:
    assert Far(0, 0, 1.0, rounding).excused is excused
