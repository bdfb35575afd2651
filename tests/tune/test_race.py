"""Which of several kernels is faster: with measurements made up, not taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from inferir.tune.race import FINALISTS, SIFT_ROUNDS, Samples, decide, race


class Machine:
    """Kernels of known speed on a machine whose speed changes: `noise` are factors, one per measurement, repeated."""

    def __init__(self, speeds: Sequence[float], noise: Sequence[float] = (1.0,)) -> None:
        self.speeds = list(speeds)
        self.calls: list[int] = []
        self._noise: Iterator[float] = itertools.cycle(noise)

    def __call__(self, kernel: int) -> float:
        self.calls.append(kernel)
        return self.speeds[kernel] * next(self._noise)


def test_the_fastest_wins_and_reports_what_it_gained() -> None:
    result = decide(4, 10, Machine([10, 9, 7, 12]))
    assert result.winner == 2
    assert (result.default.median, result.best.median) == (10, 7)
    assert len(result.best.seconds) == 10


def test_the_default_stays_if_nothing_is_faster() -> None:
    machine = Machine([10, 10, 11, 12])
    result = decide(4, 10, machine)
    assert result.winner == 0
    assert result.best is result.default


@pytest.mark.parametrize(("gain", "winner"), [(0.02, 0), (0.08, 0), (0.3, 1)])
def test_a_gain_within_the_noise_is_none(gain: float, winner: int) -> None:
    noise = [1.0, 0.97, 1.05, 1.02, 0.94, 1.08, 0.99, 1.06, 0.93, 1.01, 1.1]
    assert decide(2, 20, Machine([1.0, 1.0 - gain], noise)).winner == winner


def test_the_default_stays_unless_it_is_beaten_twice() -> None:
    """A kernel that was fast only until the confirmation: measurements from before count for nothing."""
    machine = Machine([10, 5])
    before_confirmation = 2 * SIFT_ROUNDS + 2 * 10

    def measure(kernel: int) -> float:
        seconds = machine(kernel)
        return 10.0 if len(machine.calls) > before_confirmation else seconds

    result = decide(2, 10, measure)
    assert len(machine.calls) == before_confirmation + 2 * 10
    assert result.winner == 0
    assert result.best.median == 10


def test_a_slow_phase_of_the_machine_favours_nobody() -> None:
    """Within a round the order changes and all take their turn, so both kernels see both phases alike."""
    phases = [*[1.0] * 20, *[5.0] * 20]
    assert decide(2, 20, Machine([1.0, 1.0], phases)).winner == 0


def test_only_the_best_run_the_long_race() -> None:
    count, rounds = 12, 10
    machine = Machine([10, *(11 + i for i in range(count - 1))])
    decide(count, rounds, machine)
    assert len(machine.calls) == count * SIFT_ROUNDS + (1 + FINALISTS) * rounds
    assert machine.calls.count(0) == SIFT_ROUNDS + rounds
    assert machine.calls.count(FINALISTS) == SIFT_ROUNDS + rounds
    assert machine.calls.count(FINALISTS + 1) == SIFT_ROUNDS


def test_every_round_measures_all_and_starts_with_another() -> None:
    machine = Machine([1, 2, 3])
    found = race([0, 1, 2], 4, machine)
    assert machine.calls == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert {i: s.seconds for i, s in found.items()} == {0: (1,) * 4, 1: (2,) * 4, 2: (3,) * 4}


def test_spread() -> None:
    samples = Samples((1.0, 2.0, 3.0, 4.0, 100.0))
    assert (samples.median, samples.spread) == (3.0, 2.0)
    assert not Samples((1.0,) * 5).beats(samples)
    assert Samples((0.5,) * 5).beats(samples)
    assert not samples.beats(samples)
