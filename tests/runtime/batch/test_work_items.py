"""Attention work items: which sequences are split, and that splitting is sound and never shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request
from hypothesis import given, settings
from hypothesis import strategies as st
from window_rule import reads

from inferir.ir.contract import split_kv as attn_split
from inferir.ir.contract.split_kv import ITEM_WIDTH, SPLIT, Splitting, max_partials, split_count
from inferir.runtime.batch import block_tables
from inferir.runtime.batch import work_items as attn_items
from inferir.runtime.batch.work_items import AttentionItems, StepItems
from inferir.runtime.engine.engine import Engine
from inferir.runtime.sampling.sampling_params import SamplingParams

LONG = 8 * SPLIT


def plan(lengths: list[int], new: list[int], tile: int = 1, **limits: int) -> tuple[np.ndarray, StepItems]:
    """The items of a step in which sequences of these lengths end with `new` tokens each."""
    given = Splitting(**{"threads": 2, "kv_heads": 1, "rows": max_partials(LONG), **limits})
    items = np.full((sum(new) + given.rows, ITEM_WIDTH), -9, np.int32)
    count = np.array(new)
    found = AttentionItems([(items, reads(0))], given).fill(
        np.arange(len(new)) + 3, count, np.array(lengths) - count, np.cumsum(count) - count, tile
    )
    return items[: found.total], found


def split_rows(items: np.ndarray) -> set[int]:
    return {int(i[0]) - 3 for i in items if i[4] >= 0}


def test_one_long_sequence_has_an_item_per_split() -> None:
    items, found = plan([2 * SPLIT + 7], [1])
    assert (found.total, found.merges) == (3, 1)
    assert items.tolist() == [[3, 0, 1, 2 * SPLIT + 6, j, j] for j in range(3)]


@pytest.mark.parametrize(
    ("lengths", "limits", "expected"),
    [
        ([SPLIT], {}, set()),  # one split
        ([SPLIT + 1], {}, {0}),
        ([LONG], {"threads": 1}, set()),
        ([LONG] * 8, {}, set()),  # enough of the same size for two threads
        ([LONG] * 8, {"threads": 16}, {0, 1, 2, 3}),  # as far as the workspace goes
        ([LONG, *[SPLIT // 2] * 20], {"kv_heads": 3}, {0}),
        ([3 * SPLIT] * 4, {"kv_heads": 8}, set()),
        ([LONG], {"rows": 7}, set()),
        ([LONG, 2 * SPLIT], {"rows": 7, "threads": 9}, {1}),
    ],
)
def test_items_are_split_that_are_large_for_a_thread(
    lengths: list[int], limits: dict[str, int], expected: set[int]
) -> None:
    items, _ = plan(lengths, [1] * len(lengths), **limits)
    assert split_rows(items) == expected


def test_a_short_last_chunk_of_a_long_prompt_is_split() -> None:
    items, found = plan([3 * SPLIT + 5], [5], tile=3, rows=100)
    assert found.merges == 2
    assert items[:, 1:].tolist() == [
        [0, 3, 3 * SPLIT, 0, 0],
        [3, 2, 3 * SPLIT + 3, 0, 12],
        *([0, 3, 3 * SPLIT, j, 3 * j] for j in (1, 2, 3)),
        *([3, 2, 3 * SPLIT + 3, j, 12 + 2 * j] for j in (1, 2, 3)),
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, LONG), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(1, 16),
    st.integers(1, 64),
    st.sampled_from([1, 3, 8]),
)
def test_every_token_is_computed_once_over_all_its_splits(
    work: list[tuple[int, int]], tile: int, threads: int, heads: int
) -> None:
    work = [(max(length, new), new) for length, new in work]
    items, found = plan([n for n, _ in work], [n for _, n in work], tile, threads=threads, kv_heads=heads)
    assert np.count_nonzero(items[:, 4] == 0) == found.merges
    assert (items[: found.merges, 4] == 0).all()
    tokens: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for item in items.tolist():
        tokens.setdefault(tuple(item[:4]), []).append((item[4], item[5]))
    rows: list[int] = []
    covered = []
    for (row, first, count, position), parts in tokens.items():
        assert 1 <= count <= tile
        length, new = work[row - 3]
        offset = sum(n for _, n in work[: row - 3])
        assert position - (length - new) == first - offset
        covered += range(first, first + count)
        if parts != [(-1, 0)]:
            base = parts[0][1]
            assert sorted(parts) == [(s, base + s * count) for s in range(split_count(position + count))]
            rows += range(base, base + len(parts) * count)
    assert sorted(covered) == list(range(sum(n for _, n in work)))
    assert len(rows) == len(set(rows))
    assert max(rows, default=0) < max_partials(LONG)


def served(engine: Engine) -> tuple[list[list[int]], int, list[Any]]:
    """Outputs of sequences that outgrow several splits, how many steps merged, and the items of all steps."""
    executor: Any = engine.executor
    run, seen, merges = executor.wait, [], 0

    def observe(step: Any) -> Any:
        nonlocal merges
        counts = step.counts
        merges += counts.merges > 0
        seen.append((counts, executor.inputs["attn_items"][: counts.items].copy()))
        return run(step)

    executor.wait = observe
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    requests = [add_request(engine, list(range(1, n)), params) for n in (3, 9, 22)]
    while engine.has_unfinished:
        engine.step()
    return [r.outputs for r in requests], merges, seen


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of eight positions on the host."""
    for module in (attn_split, attn_items, block_tables):
        monkeypatch.setattr(module, "SPLIT", 8)


@pytest.mark.usefixtures("short_splits")
def test_sequences_that_grow_get_an_item_for_every_new_split(make_engine: Callable[..., Engine]) -> None:
    """Steps that only move on have the items that a preparation from scratch makes, and outputs do not change."""
    always, never = Splitting(threads=64, kv_heads=1, rows=100), Splitting(threads=1, kv_heads=1, rows=100)
    outputs, merges, seen = served(make_engine(splitting=always))
    assert merges > 25
    fresh = make_engine(splitting=always)
    prepare = fresh.batch.prepare

    def from_scratch(scheduled: Any) -> Any:
        fresh.batch._last = None
        return prepare(scheduled)

    fresh.batch.prepare = from_scratch  # type: ignore[method-assign]
    again, _, expected = served(fresh)
    assert outputs == again
    for (counts, items), (other_counts, other) in zip(seen, expected, strict=True):
        assert counts == other_counts
        np.testing.assert_array_equal(items, other)
    whole, none, _ = served(make_engine(splitting=never))
    assert none == 0
    assert outputs == whole
