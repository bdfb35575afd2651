"""Memory of blocks is touched before their first use, and never that of a block that was used."""

from typing import Any

import numpy as np
import pytest

from inferir.runtime import fresh_memory
from inferir.runtime.fresh_memory import FreshMemory
from inferir.runtime.kv.block_pool import BlockPool

REGIONS, BLOCKS, PART = 3, 41, 1000


class Memory:
    """Records what is touched: [regions, blocks] counts."""

    kv_regions = REGIONS
    kv_bytes = REGIONS * BLOCKS * PART

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.touched = np.zeros((REGIONS, BLOCKS), int)
        self.most = 0

    def touch_kv(self, region: int, first: int, stop: int) -> None:
        assert self.pool.high < first < stop <= BLOCKS
        self.touched[region, first:stop] += 1
        self.most = max(self.most, stop - first)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(BLOCKS)


@pytest.fixture
def memory(pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(fresh_memory, "SLICE_BYTES", 4 * PART)
    return Memory(pool)


def test_as_far_ahead_as_asked_and_each_block_once(pool: BlockPool, memory: Memory) -> None:
    fresh = FreshMemory(memory, pool, ahead_bytes=10 * REGIONS * PART)  # type: ignore[arg-type]
    while fresh.touch():
        pass
    assert memory.most == 4
    assert (memory.touched[:, 1:11] == 1).all()
    assert memory.touched.max() == 1
    assert (memory.touched[:, 13:] == 0).all()
    assert not fresh.touch()
    pool.allocate(9)
    while fresh.touch():
        pass
    assert (memory.touched[:, 1:20] == 1).all()
    assert memory.touched.max() == 1


def test_blocks_that_come_into_use_between_slices_are_left_alone(pool: BlockPool, memory: Memory) -> None:
    fresh = FreshMemory(memory, pool, ahead_bytes=1 << 30)  # type: ignore[arg-type]
    for count in (1, 2, 9, 0, 5):
        fresh.touch()
        pool.allocate(count)
    while fresh.touch():
        pass
    assert (memory.touched[:, pool.high + 1 :] == 1).all()


def test_the_highest_block_is_known(pool: BlockPool) -> None:
    assert pool.high == 0
    blocks = pool.allocate(7)
    assert pool.high == 7
    assert blocks is not None
    pool.release(blocks)
    pool.allocate(3)
    assert pool.high == 10
