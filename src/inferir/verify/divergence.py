"""How far logits are from a reference, row by row. numpy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]

_AT_ONCE = 1 << 22  # elements that are held in double precision at a time


class Distances(NamedTuple):
    """Per row: largest and mean absolute difference of the logits, KL divergence in nats of the distribution from the
    reference's, and whether both have the same largest logit."""

    max_abs: npt.NDArray[np.float64]
    mean_abs: npt.NDArray[np.float64]
    kl: npt.NDArray[np.float64]
    top1: npt.NDArray[np.bool_]


def distances(reference: Rows, found: Rows) -> Distances:
    """Distances of `found` [n, V] from `reference` [n, V]. A row that is not finite is infinitely far away."""
    step = max(1, _AT_ONCE // max(1, reference.shape[1]))
    parts = [_distances(reference[i : i + step], found[i : i + step]) for i in range(0, max(1, len(reference)), step)]
    return Distances(*map(np.concatenate, zip(*parts, strict=True)))


def _distances(reference: Rows, found: Rows) -> Distances:
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = reference.astype(np.float64), found.astype(np.float64)
        difference = np.abs(a - b)
        log_p, log_q = _log_softmax(a), _log_softmax(b)
        kl = np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0.0)
    bad = ~np.isfinite(b).all(-1)
    return Distances(
        np.where(bad, np.inf, difference.max(-1)),
        np.where(bad, np.inf, difference.mean(-1)),
        np.where(bad, np.inf, kl),
        (a.argmax(-1) == b.argmax(-1)) & ~bad,
    )


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(-1, keepdims=True)
    out: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out


def top2_gap(logits: npt.NDArray[np.float32]) -> float:
    """The difference between the two largest logits of one row."""
    second, first = np.partition(logits.astype(np.float64), -2)[-2:]
    return float(first - second)
