"""Block pool: counts balance, nothing is handed out twice, the longest unused block is reused first."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inferir.ir.contract.kv_specs import NULL_BLOCK
from inferir.ir.errors import EngineError
from inferir.runtime.kv.block_pool import BlockPool


def free_order(pool: BlockPool) -> list[int]:
    """Free blocks in the order in which they will be reused."""
    order = [pool._next[NULL_BLOCK]]
    while order[-1] != NULL_BLOCK:
        order.append(pool._next[order[-1]])
    return order[:-1]


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with an ordered dictionary of free blocks and a dictionary of counts."""

    @initialize(size=st.integers(2, 9))
    def start(self, size: int) -> None:
        self.pool = BlockPool(size)
        self.free = OrderedDict.fromkeys(range(1, size))
        self.refs: dict[int, int] = {}

    @rule(count=st.integers(0, 9))
    def allocate(self, count: int) -> None:
        got = self.pool.allocate(count)
        if count > len(self.free):
            assert got is None
            return
        expected = list(self.free)[:count]
        assert got == expected
        for block in expected:
            del self.free[block]
            self.refs[block] = 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.refs)))
        self.pool.release([0, block])
        self.refs[block] -= 1
        if not self.refs[block]:
            del self.refs[block]
            self.free[block] = None

    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, self.pool.num_blocks - 1))
        self.pool.acquire(block)
        if block:
            self.free.pop(block, None)
            self.refs[block] = self.refs.get(block, 0) + 1

    @invariant()
    def same(self) -> None:
        assert free_order(self.pool) == list(self.free)
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_used == len(self.refs)
        assert all(self.pool.refs(b) == n for b, n in self.refs.items())


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_released_twice_is_an_error() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    assert blocks == [1]
    pool.release(blocks)
    with pytest.raises(EngineError, match="block 1 was released twice"):
        pool.release(blocks)


def test_usage() -> None:
    pool = BlockPool(5)
    assert pool.usage == 0
    pool.allocate(3)
    assert pool.usage == 0.75
    with pytest.raises(EngineError, match="1 blocks holds nothing"):
        BlockPool(1)


def test_blocks_that_nobody_will_want_are_reused_first() -> None:
    pool = BlockPool(9)
    blocks = pool.allocate(6)
    assert blocks == [1, 2, 3, 4, 5, 6]
    pool.keeps = {2, 5}.__contains__
    pool.release([1, 2, 3, 5])
    assert free_order(pool) == [3, 1, 7, 8, 2, 5]
    assert pool.allocate(2) == [3, 1]
    pool.release([4])
    assert free_order(pool) == [4, 7, 8, 2, 5]
