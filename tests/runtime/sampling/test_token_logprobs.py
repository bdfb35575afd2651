"""Log-probabilities of a row of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferir.runtime.sampling.token_logprobs import token_logprobs

ROW = np.array([1.0, 3.0, 2.0, 3.0, -np.inf], np.float32)
LOGPROBS = [x - math.log(sum(math.exp(y) for y in ROW.tolist())) for x in ROW.tolist()]


@pytest.mark.parametrize(
    ("token", "top", "rank", "best"),
    [
        (0, 0, 4, []),
        (2, 1, 3, [1]),  # the lower id of two that are equal
        (3, 2, 1, [1, 3]),
        (1, 3, 1, [1, 3, 2]),
        (4, 9, 5, [1, 3, 2, 0, 4]),
        (0, -1, 4, [1, 3, 2, 0, 4]),
    ],
)
def test_a_row(token: int, top: int, rank: int, best: list[int]) -> None:
    found = token_logprobs(ROW, token, top)
    assert (found.token, found.rank, [i for i, _ in found.top]) == (token, rank, best)
    assert found.logprob == pytest.approx(LOGPROBS[token])
    assert [p for _, p in found.top] == pytest.approx([LOGPROBS[i] for i in best])


def test_large_logits_do_not_overflow() -> None:
    found = token_logprobs(np.array([3e38, 0.0], np.float32), 0, 1)
    assert found.logprob == 0.0
