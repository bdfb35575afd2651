"""Block tables of full and windowed caches."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_rule import reads

from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs
from inferir.ir.contract.kv_reads import SlidingWindow
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.errors import EngineError
from inferir.ir.graph.dtypes import DType
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.cache_size import plan_blocks
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.kv.managers import BlockTable, KVManager, manager_for

SIZE: dict[str, Any] = {"block_size": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "dtype": DType.BF16}
FULL = AttentionSpec(**SIZE)


def sliding(window: int, **changes: Any) -> AttentionSpec:
    return AttentionSpec(**(SIZE | changes), reads=SlidingWindow(window))


def group(spec: Any, *layers: int, table: str = "") -> KVCacheGroup:
    return KVCacheGroup(spec=spec, layers=layers, block_tables=f"block_tables{table}", slots=f"slots{table}")


def test_a_kind_of_cache_names_its_manager() -> None:
    class Own(AttentionSpec, frozen=True, kw_only=True, tag="own"):
        manager: ClassVar[str] = f"{__name__}:OwnManager"

    class Derived(Own, frozen=True, kw_only=True, tag="derived"):
        pass

    pool = BlockPool(4)
    assert type(manager_for(FULL, pool)) is KVManager
    assert type(manager_for(Derived(**SIZE), pool)) is OwnManager


class OwnManager(KVManager):
    pass


def test_full_attention_keeps_everything() -> None:
    pool = BlockPool(9)
    manager = manager_for(FULL, pool)
    table = BlockTable()
    assert manager.extend(table, 5)
    assert table.ids == [1, 2]
    manager.forget(table, 5)
    assert manager.extend(table, 8)
    assert manager.extend(table, 9)
    assert table.ids == [1, 2, 3]
    assert not manager.extend(table, 100)
    assert table.ids == [1, 2, 3]
    manager.free(table)
    assert (table.ids, pool.num_used) == ([], 0)


def test_window_puts_the_null_block_behind_itself() -> None:
    pool = BlockPool(9)
    manager = manager_for(sliding(5), pool)
    table = BlockTable()
    manager.extend(table, 12)
    manager.forget(table, 7)  # position 7 still sees position 3, in block 0
    assert table.ids == [1, 2, 3]
    manager.forget(table, 8)  # position 8 sees 4 … 8
    assert (table.ids, table.first, pool.num_used) == ([0, 2, 3], 1, 2)
    manager.free(table)
    assert pool.num_used == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(-20, 20), st.integers(1, 9), st.integers(1, 60), st.data())
def test_a_table_holds_what_is_visible_and_no_more_than_peak(window: int, step: int, length: int, data: Any) -> None:
    pool = BlockPool(40)
    rule = reads(window)
    cache = KVCache((group(AttentionSpec(**SIZE, reads=rule), 0),), pool)
    (table,) = blocks = cache.new_sequence()
    computed = 0
    while computed < length:
        tokens = min(data.draw(st.integers(1, step)), length - computed)
        assert cache.reserve(blocks, computed, computed + tokens)
        assert pool.num_used == len(table.ids) - table.first <= cache.peak(length, step)
        lowest = max(0, rule.first(computed))
        for position in range(lowest, computed + tokens):
            assert table.ids[position // 4] != 0
        assert all(i == 0 for i in table.ids[: lowest // 4])
        computed += tokens
    cache.free(blocks)
    assert pool.num_used == 0


def test_reserve_is_all_or_nothing() -> None:
    pool = BlockPool(6)  # 5 blocks
    cache = KVCache((group(FULL, 0), group(FULL, 1, table="1")), pool)
    blocks = cache.new_sequence()
    assert cache.reserve(blocks, 0, 8)
    assert not cache.reserve(blocks, 8, 12)
    assert [len(t.ids) for t in blocks] == [2, 2]
    assert cache.missing(blocks, 12) == 2
    cache.free(blocks)
    assert pool.num_free == 5


def test_capacity_is_the_longest_sequence_that_fits() -> None:
    cache = KVCache((group(FULL, 0),), BlockPool(6))
    assert cache.capacity(1000, 16) == 20
    assert cache.capacity(7, 16) == 7
    window = KVCache((group(sliding(5), 0),), BlockPool(6))
    assert window.capacity(1000, 4) == 1000
    both = KVCache((group(FULL, 0), group(FULL, 1, table="1")), BlockPool(6))
    assert both.capacity(1000, 16) == 8


def test_demand_counts_what_is_still_to_come() -> None:
    cache = KVCache((group(sliding(5), 0),), BlockPool(20))
    blocks = cache.new_sequence()
    assert cache.demand(blocks, 40, 4) == cache.peak(40, 4) == 3
    cache.reserve(blocks, 0, 4)
    assert cache.demand(blocks, 40, 4) == 2
    assert cache.demand(blocks, 4, 4) == 0


def test_slabs_are_shared_between_groups_only() -> None:
    slabs = plan_slabs((group(FULL, 0, 1), group(sliding(5), 2, 3, 4, table="1")))
    assert slabs.slab == {(0, 0): 0, (0, 1): 1, (1, 2): 0, (1, 3): 1, (1, 4): 2}
    assert slabs.block_bytes == 3 * FULL.page_bytes
    apart = plan_slabs((group(FULL, 0), group(sliding(5, kv_heads=1), 1, table="1"), group(sliding(5), 2, table="2")))
    assert apart.slab == {(0, 0): 0, (1, 1): 1, (2, 2): 0}
    assert apart.block_bytes == FULL.page_bytes + FULL.page_bytes // 2


def test_number_of_blocks() -> None:
    groups = (group(FULL, 0, 1),)

    def blocks(budget: int | None, available: int = 1 << 40) -> int:
        return plan_blocks(groups, budget=budget, max_seqs=3, max_model_len=10, step_tokens=4, available=available)

    assert plan_slabs(groups).block_bytes == 512
    assert blocks(None) == blocks(1 << 30) == 10
    assert blocks(4 * 512 + 100) == 4
    assert blocks(None, available=10 * 512) == 5
    with pytest.raises(EngineError, match="kv_cache_memory of 1000 bytes is less than the smallest KV cache, 2 blocks"):
        blocks(1000)


def test_the_text_of_a_cache_tells_what_a_sequence_takes_in_each_group() -> None:
    """A step of 8 tokens reads up to 4 positions before its first one: 12 positions lie in at most 4 blocks of 4."""
    groups = (group(FULL, 0), group(sliding(5), 1, table="1"), group(sliding(5), 2, table="2"))
    page = 4 * 2 * 8 * 2 * 2
    kv = KVCache(groups, BlockPool(4097))
    assert kv.text(40, 8) == (
        f"{4096 * page / 2**20:.1f} MiB in 4,096 blocks; a sequence of 40 tokens takes at most "
        "10 for each of 1 group of full attention, 2 KV heads of 8; "
        "4 for each of 2 groups of sliding window of 5, 2 KV heads of 8"
    )
    assert KVCache((), BlockPool(2)).text(40, 8) == "0 B in 1 block"
