"""Tables that begin at the window: what kernels see of them, over whole lives of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request
from window_rule import reads

from inferir.ir.contract import split_kv
from inferir.ir.contract.split_kv import ITEM_WIDTH, Splitting
from inferir.runtime.batch import block_tables, work_items
from inferir.runtime.batch.work_items import AttentionItems
from inferir.runtime.engine.engine import Engine
from inferir.runtime.sampling.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of eight positions on the host, so that tables move on often."""
    for module in (split_kv, work_items, block_tables):
        monkeypatch.setattr(module, "SPLIT", 8)


def served(engine: Engine, lengths: tuple[int, ...]) -> list[list[int]]:
    requests = [add_request(engine, [1 + (7 * i) % 40 for i in range(n)], GREEDY) for n in lengths]
    while engine.has_unfinished:
        engine.step()
    assert engine.kv.pool.num_used == 0
    return [r.outputs for r in requests]


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("windows", [(6,), (0, 6), (3, 0, 17), (1, 8, 9), (-6, -16)])
@pytest.mark.parametrize("options", [{}, {"threads": 64}, {"blocks": 16}, {"max_tokens": 40}])
def test_answers_are_those_of_each_request_alone(
    make_engine: Callable[..., Engine], windows: tuple[int, ...], options: dict[str, int]
) -> None:
    """The executor of these tests fails when a table lacks a visible position, or shows one of another sequence."""
    lengths = (3, 33, 20, 9)
    plain = {"max_model_len": 80, "windows": windows, "num_blocks": 200}
    alone = [served(make_engine(**plain, prefix_caching=False), (n,))[0] for n in lengths]
    engine = make_engine(
        **plain | {"num_blocks": options.get("blocks", 64) * len(windows)},  # with few of them, some are preempted
        max_tokens=options.get("max_tokens", 16),
        splitting=Splitting(threads=options.get("threads", 1), kv_heads=1, rows=100),
    )
    assert served(engine, lengths) == alone
    assert served(engine, lengths) == alone, "with beginnings from the prefix cache"
    if "blocks" in options and 0 in windows:
        assert engine.stats().preemptions > 0


@pytest.mark.usefixtures("short_splits")
def test_tables_begin_with_the_first_split_that_is_read(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(max_model_len=80, windows=(0, 6))
    request = add_request(engine, list(range(1, 31)), GREEDY)
    inputs: Any = engine.executor.inputs
    full, window = engine.kv.groups
    for computed in (16, 30, 31, 32, 33, 34, 35, 36, 37, 38):
        engine.step()
        assert request.computed == computed
        first = max(0, (16 if computed == 30 else computed - 1) - 5) if computed > 16 else 0
        begin = first // 8 * 8 // 4
        for group, table, start in ((full, request.blocks[0], 0), (window, request.blocks[1], begin)):
            ids = table.ids[start:]
            assert inputs[group.block_tables][request.row, : len(ids)].tolist() == ids


def plan(lengths: list[int], windows: list[int], **limits: int) -> tuple[list[np.ndarray], Any]:
    """Work items, by window, of a decode step of sequences of these lengths."""
    given = Splitting(**{"threads": 64, "kv_heads": 1, "rows": 1000, **limits})
    arrays = [np.full((2000, ITEM_WIDTH), -9, np.int32) for _ in windows]
    ones = np.ones(len(lengths), np.int64)
    found = AttentionItems(list(zip(arrays, map(reads, windows), strict=True)), given).fill(
        np.arange(len(lengths)), ones, np.array(lengths) - 1, np.arange(len(lengths)), 1
    )
    return [a[: found.total] for a in arrays], found


def test_windows_have_no_splits_behind_them() -> None:
    """One sequence of twelve splits, of which a window of 512 reaches into two."""
    (full, window), found = plan([12 * 512 - 100], [0, 512])
    assert (found.total, found.merges) == (12, 1)
    assert full.tolist() == [[0, 0, 1, 12 * 512 - 101, j, j] for j in range(12)]
    assert window[:2].tolist() == [[0, 0, 1, 2 * 512 - 101, j, j] for j in range(2)]
    assert not window[2:].any(), "items of no tokens"


def test_windows_that_merge_less_have_items_of_no_tokens_in_front() -> None:
    lengths = [3000, 40, 5000]
    arrays, found = plan(lengths, [0, 100, 2000])
    for items, window in zip(arrays, [0, 100, 2000], strict=True):
        merged, rest = items[: found.merges], items[found.merges :]
        assert set(merged[:, 4].tolist()) <= {0}
        assert 0 not in {split for _, _, count, _, split, _ in rest.tolist() if count}
        for row, length in enumerate(lengths):
            start = max(0, length - window) // 512 * 512 if window else 0
            mine = items[(items[:, 0] == row) & (items[:, 2] == 1)]
            assert set(mine[:, 3].tolist()) == {length - 1 - start}
            splits = sorted(mine[:, 4].tolist())
            assert splits in ([-1], list(range(-(-(length - start) // 512))))


def test_the_largest_step_has_room_for_all_items() -> None:
    """Every window has as many items to merge as the one with most: at most one more per two rows of the workspace."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(1, 4096, rng.integers(1, 40)).tolist()
        arrays, found = plan(lengths, [0, 700, 3000], threads=int(rng.integers(2, 64)), rows=4 * 8)
        assert found.total <= len(lengths) + 4 * 8 + 4 * 8 // 2
        for items in arrays:
            assert set(items[items[:, 2] > 0][:, 1].tolist()) == set(range(len(lengths)))
