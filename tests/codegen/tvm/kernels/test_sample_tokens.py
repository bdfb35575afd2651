"""Draws by the compiled kernel against the reference: every way to narrow a row, alone and together."""

from collections.abc import Callable

import pytest
import sample_bodies as bodies
import torch
from sample_bodies import Case, sample_case

from inferir.ir.contract.step_inputs import SAMPLE_INPUTS
from inferir.ir.contract.target import Target
from inferir.ir.graph.interpreter import run_body

torch.set_num_threads(1)

Run = Callable[..., list[torch.Tensor]]
LOW = float("-inf")


def agrees(run: Run, target: Target, case: Case, workers: int = 0) -> torch.Tensor:
    """The kernel's tokens, after comparing all of them with the reference."""
    (got,), (want,) = run(case, target, workers), run_body(case.body, case.tensors)
    assert torch.equal(got, want), (got != want).nonzero().flatten().tolist()
    return got


def hot(rows: int, temperature: float = 1.0, seed: int = 0) -> dict[str, torch.Tensor]:
    return {"temperature": torch.full((rows,), temperature), "seed": torch.arange(seed, seed + rows).int()}


def words(allowed: torch.Tensor) -> torch.Tensor:
    """Bitmask rows for bools [R, V]."""
    rows, vocab = allowed.shape
    bits = torch.zeros(rows, -(-vocab // 32) * 32, dtype=torch.int64)
    bits[:, :vocab] = allowed
    packed = (bits.view(rows, -1, 32) << torch.arange(32)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def mixed(rows: int, vocab: int) -> dict[str, torch.Tensor]:
    """Random parameters of every kind, some of them off in every row."""

    def some(values: torch.Tensor, off: float) -> torch.Tensor:
        return torch.where(torch.rand(rows) < 0.5, values, torch.full_like(values, off))

    counts = torch.where(torch.rand(rows) < 0.5, torch.randint(1, 20, (rows,)), 0)
    total = int(counts.sum())
    return {
        "temperature": some(torch.rand(rows) * 2 + 0.1, 0.0),
        "top_k": some(torch.randint(-1, vocab + 5, (rows,)), 0).int(),
        "top_p": some(torch.rand(rows), 1.0),
        "min_p": some(torch.rand(rows) * 0.3, 0.0),
        "seed": torch.randint(-(2**31), 2**31 - 1, (rows,)).int(),
        "counter": torch.randint(0, 1000, (rows,)).int(),
        "masked": torch.randint(0, 2, (rows,)).int(),
        "bitmask": words(torch.rand(rows, vocab) < 0.5),
        "edit_begin": (counts.cumsum(0) - counts).int(),
        "edit_count": counts.int(),
        "edit_ids": torch.randint(0, vocab, (total + 1,)).int(),
        "edit_bias": torch.where(torch.rand(total + 1) < 0.2, LOW, torch.randn(total + 1) * 5),
        "edit_multiplier": torch.rand(total + 1) + 0.5,
        "edit_offset": torch.rand(total + 1),
    }


def chosen(logits: torch.Tensor, given: dict[str, torch.Tensor], rows: torch.Tensor) -> Case:
    """Some rows of a case; the list of edits stays whole."""
    lists = {i.name for i in SAMPLE_INPUTS if i.dims == ("E",)}
    return sample_case(logits[rows], **{n: t if n in lists else t[rows] for n, t in given.items()})


def test_plain_draws_equal_the_reference(run: Run, host: Target) -> None:
    torch.manual_seed(3)
    agrees(run, host, bodies.draw())


@pytest.mark.parametrize(("vocab", "valid"), [(16, 16), (100, 97), (256, 256), (1000, 997), (5000, 4999)])
def test_random_rows_equal_the_reference(vocab: int, valid: int, run: Run, host: Target) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(128, vocab) * (torch.rand(128, 1) * 6)
    logits[:, valid:] = 1e4
    agrees(run, host, sample_case(logits, valid, **mixed(128, vocab)))


def test_every_target_draws_the_same(run: Run, target: Target) -> None:
    torch.manual_seed(5)
    agrees(run, target, sample_case(torch.randn(40, 500) * 4, **mixed(40, 500)))


def test_rows_do_not_depend_on_neighbours_or_threads(run: Run, host: Target) -> None:
    torch.manual_seed(6)
    logits, given = torch.randn(40, 700) * 3, mixed(40, 700)
    together = run(sample_case(logits, **given), host, 2)[0]
    for r in (0, 7, 39):
        assert run(chosen(logits, given, torch.tensor([r])), host)[0] == together[r]
    order = torch.randperm(40)
    assert torch.equal(run(chosen(logits, given, order), host)[0], together[order])


def test_a_filter_that_removes_nothing_changes_nothing(run: Run, host: Target) -> None:
    """The copied row draws what the plain row draws, bit for bit."""
    logits = torch.randn(64, 300) * 2
    plain = run(sample_case(logits, **hot(64)), host)[0]
    for off in ({"min_p": torch.full((64,), 1e-37)}, {"masked": torch.ones(64).int(), "bitmask": words(logits < 1e9)}):
        assert torch.equal(run(sample_case(logits, **hot(64), **off), host)[0], plain)


def test_equal_maxima_give_the_first(run: Run, host: Target) -> None:
    logits = torch.zeros(3, 64)
    logits[1, 30] = logits[1, 41] = 2.0
    assert agrees(run, host, sample_case(logits, 50)).tolist() == [0, 30, 0]


def test_a_padded_vocabulary_is_never_drawn(run: Run, host: Target) -> None:
    assert int(agrees(run, host, bodies.draw(rows=200, vocab=128, valid=100)).max()) < 100


def test_ties_at_the_limit_stay_together(run: Run, host: Target) -> None:
    """top-k 2 over [3, 2, 2, 2, 1 …]: all that equal the second largest may be drawn; top-p likewise."""
    logits = torch.full((600, 40), 1.0)
    logits[:, 5], logits[:, 7], logits[:, 20], logits[:, 39] = 3.0, 2.0, 2.0, 2.0
    for narrow in ({"top_k": torch.full((600,), 2).int()}, {"top_p": torch.full((600,), 0.23)}):
        assert set(agrees(run, host, sample_case(logits, **hot(600), **narrow)).tolist()) == {5, 7, 20, 39}
    flat = agrees(run, host, sample_case(torch.zeros(600, 40), **hot(600), top_k=torch.ones(600).int()))
    assert len(set(flat.tolist())) == 40


def test_top_p_keeps_at_least_one(run: Run, host: Target) -> None:
    logits = torch.randn(50, 333) * 2
    for p in (0.0, 1e-30, 1e-3):
        got = agrees(run, host, sample_case(logits, **hot(50, 5.0), top_p=torch.full((50,), p)))
        assert torch.equal(got.long(), logits.argmax(1))


def test_minus_infinity_everywhere_but_in_one_place(run: Run, host: Target) -> None:
    logits = torch.full((12, 90), LOW)
    logits[torch.arange(12), torch.arange(12) * 7] = -50.0
    for given in ({}, hot(12), {**hot(12), "top_k": torch.full((12,), 40).int(), "top_p": torch.full((12,), 0.9)}):
        assert agrees(run, host, sample_case(logits, **given)).tolist() == [7 * i for i in range(12)]


def test_a_row_without_a_drawable_entry_gives_minus_one(run: Run, host: Target) -> None:
    """Nothing of the raw row leaks: neither through a mask, nor through edits, nor from -inf or NaN logits."""
    none, nan = torch.full((2, 64), LOW), torch.full((2, 64), float("nan"))
    spot = {"temperature": torch.tensor([0.0, 1.0])}
    cut = {"top_k": torch.full((2,), 5).int(), "top_p": torch.full((2,), 0.5), "min_p": torch.full((2,), 0.1)}
    masked = {"masked": torch.ones(2).int(), "bitmask": torch.zeros(2, 2).int()}
    banned = {
        "edit_begin": torch.zeros(2).int(),
        "edit_count": torch.full((2,), 64).int(),
        "edit_ids": torch.arange(64).int(),
        "edit_bias": torch.full((64,), LOW),
        "edit_multiplier": torch.ones(64),
        "edit_offset": torch.zeros(64),
    }
    for logits, given in ((none, {}), (nan, {}), (torch.randn(2, 64), masked), (torch.randn(2, 64), banned)):
        assert agrees(run, host, sample_case(logits, **spot, **given)).tolist() == [-1, -1]
        assert agrees(run, host, sample_case(logits, **spot, **given, **cut)).tolist() == [-1, -1]


def test_entries_that_are_not_numbers_are_never_drawn(run: Run, host: Target) -> None:
    """Nor do they disturb the others; with infinite logits the first of them is the token."""
    torch.manual_seed(8)
    logits = torch.randn(60, 200) * 3
    logits[torch.rand(60, 200) < 0.4] = float("nan")
    given = mixed(60, 200)
    got = agrees(run, host, sample_case(logits, **given))
    assert not logits[torch.arange(60), got.clamp(0).long()][got >= 0].isnan().any()
    logits[:, [20, 150]] = float("inf")
    cut = {"top_k": torch.full((60,), 3).int(), "top_p": torch.full((60,), 0.5), "min_p": torch.full((60,), 0.1)}
    assert agrees(run, host, sample_case(logits, **hot(60), **cut)).tolist() == [20] * 60


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e30])
def test_any_size_of_logits(scale: float, run: Run, host: Target) -> None:
    torch.manual_seed(7)
    logits = torch.randn(40, 400) * scale
    given = {"top_k": torch.randint(1, 300, (40,)).int(), "top_p": torch.rand(40)}
    agrees(run, host, sample_case(logits, **hot(40), **given))


def test_narrowed_draws_follow_the_narrowed_softmax(run: Run, host: Target) -> None:
    """A chi-squared test with 4 degrees of freedom over the entries that are left; 30 is beyond the 0.00001 tail."""
    n = 4000
    logits = torch.cat([torch.tensor([2.0, 1.0, 0.5, 1.5, 0.0]), torch.full((27,), -3.0)])
    case = sample_case(logits.expand(n, 32).contiguous(), **hot(n), top_k=torch.full((n,), 5).int())
    seen = torch.bincount(run(case, host)[0].long(), minlength=32).float()
    expect = logits[:5].softmax(0) * n
    assert seen[5:].sum() == 0
    assert float(((seen[:5] - expect) ** 2 / expect).sum()) < 30
