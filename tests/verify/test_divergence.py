"""Distances between logits, against torch and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferir.verify.divergence import distances, top2_gap


def logits(rows: int, width: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, width)) * 5).astype(np.float32)


def test_equal_logits_have_no_distance() -> None:
    a = logits(3, 50, 0)
    d = distances(a, a.copy())
    assert d.max_abs.tolist() == d.mean_abs.tolist() == d.kl.tolist() == [0.0] * 3
    assert d.top1.all()


def test_distances_agree_with_torch() -> None:
    a, b = logits(7, 5000, 1), logits(7, 5000, 2)
    d = distances(a, b)
    p, q = torch.from_numpy(a).double().log_softmax(-1), torch.from_numpy(b).double().log_softmax(-1)
    kl = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    np.testing.assert_allclose(d.kl, kl.numpy(), rtol=1e-9)
    np.testing.assert_allclose(d.max_abs, np.abs(a.astype(np.float64) - b).max(-1))
    np.testing.assert_allclose(d.mean_abs, np.abs(a.astype(np.float64) - b).mean(-1))
    assert d.top1.tolist() == (a.argmax(-1) == b.argmax(-1)).tolist()


def test_rows_do_not_depend_on_their_number() -> None:
    a, b = logits(40, 1 << 18, 3), logits(40, 1 << 18, 4)
    many = distances(a, b)
    for i in (0, 15, 16, 39):
        assert many.kl[i] == distances(a[i : i + 1], b[i : i + 1]).kl[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_infinitely_far(bad: float) -> None:
    a = logits(2, 10, 5)
    b = a.copy()
    b[1, 3] = bad
    d = distances(a, b)
    assert (d.max_abs[0], d.kl[0]) == (0.0, 0.0)
    assert d.max_abs[1] == d.mean_abs[1] == d.kl[1] == np.inf
    assert d.top1.tolist() == [True, False]


def test_no_rows() -> None:
    empty = np.zeros((0, 9), np.float32)
    assert len(distances(empty, empty).kl) == 0


def test_top2_gap() -> None:
    assert top2_gap(np.array([1.0, 7.5, -3.0, 7.0], np.float32)) == 0.5
    assert top2_gap(np.array([2.0, 2.0, 0.0], np.float32)) == 0.0
