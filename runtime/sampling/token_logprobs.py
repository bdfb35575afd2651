"""Log-probabilities of tokens, computed on the host from raw logits for the requests that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class TokenLogprobs(NamedTuple):
    """How likely the model found `token` before any sampling parameter applied.

    rank: 1 for the most likely token; tokens of equal logits share the best rank. top: the most likely tokens with
    their log-probabilities, best first, lower ids first among equals.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: npt.NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """From a row of raw logits; `top` most likely tokens, -1 for all of them."""
    import numpy as np  # not above: the server's front process reads such records, and loads no arrays

    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    count = len(row) if top < 0 else min(top, len(row))
    return TokenLogprobs(
        token,
        float(row[token]),
        1 + int((row > row[token]).sum()),
        tuple((int(i), float(row[i])) for i in _best(row, count)),
    )


def _best(row: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Indices of the `count` largest values, in order."""
    import numpy as np

    if count == 0:
        return np.empty(0, np.int64)
    if count < len(row):
        least = np.partition(row, len(row) - count)[len(row) - count]
        found = np.flatnonzero(row >= least)
    else:
        found = np.arange(len(row))
    return found[np.argsort(-row[found], kind="stable")][:count]
