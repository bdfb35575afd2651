"""Deciding which of several kernels is faster on a machine that has other things to do as well.

Kernels are measured in turn, round by round, so that whatever slows the machine for a while slows all of them. What
differs by less than the measurements of one kernel differ among themselves is no difference.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SIFT_ROUNDS = 3
FINALISTS = 5
LEAST_ROUNDS = 5
"""Fewer measurements have no spread to speak of."""

Measure = Callable[[int], float]
"""`measure(i)`: seconds that kernel number i takes now."""


@dataclass(frozen=True)
class Samples:
    """Measurements of one kernel, in seconds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The interquartile range."""
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return high - low

    def beats(self, other: Samples) -> bool:
        """Whether this is faster in the medians by more than the larger of the two spreads."""
        return other.median - self.median > max(self.spread, other.spread)


@dataclass(frozen=True)
class RaceResult:
    """The kernel to use: 0, the default, unless another one beat it twice. Samples are those of the last race."""

    winner: int
    default: Samples
    best: Samples


def race(candidates: Sequence[int], rounds: int, measure: Measure) -> dict[int, Samples]:
    """Measure every candidate once per round; each round starts with another one."""
    taken: dict[int, list[float]] = {i: [] for i in candidates}
    for turn in range(rounds):
        first = turn % len(candidates)
        for i in (*candidates[first:], *candidates[:first]):
            taken[i].append(measure(i))
    return {i: Samples(tuple(seconds)) for i, seconds in taken.items()}


def decide(count: int, rounds: int, measure: Measure) -> RaceResult:
    """Find the fastest of `count` kernels, of which number 0 is the default.

    A short race of all leaves the default and the `FINALISTS` best; they run `rounds` rounds. The fastest must beat the
    default there, and again in a race of the two that counts none of the measurements before.
    """
    sifted = race(range(count), SIFT_ROUNDS, measure)
    others = sorted(range(1, count), key=lambda i: min(sifted[i].seconds))[:FINALISTS]
    final = race([0, *others], rounds, measure)
    best = min(final, key=lambda i: final[i].median)
    if not final[best].beats(final[0]):
        return RaceResult(0, final[0], final[0])
    again = race([0, best], rounds, measure)
    return RaceResult(best if again[best].beats(again[0]) else 0, again[0], again[best])
