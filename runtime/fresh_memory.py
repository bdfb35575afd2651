"""Memory of the KV cache before its first use: taken from the system while nothing else is to be done.

The system gives memory when it is first written to, zeroed, and that takes its time, more so in a virtual machine whose
host has to find it too. A step that is the first to write to a block would wait for it.
"""

from __future__ import annotations

from inferir.runtime.executor.base import Executor
from inferir.runtime.kv.block_pool import BlockPool

AHEAD_BYTES = 1 << 30
SLICE_BYTES = 1 << 20


class FreshMemory:
    """Keeps `ahead_bytes` beyond the highest block that was ever used in memory, a slice at a time.

    The executor keeps the cache in `kv_regions` regions, each with a part of every block.
    """

    def __init__(self, executor: Executor, pool: BlockPool, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._executor, self._pool = executor, pool
        block_bytes = max(1, executor.kv_bytes // pool.num_blocks)
        self._ahead = ahead_bytes // block_bytes
        self._group = max(1, SLICE_BYTES * executor.kv_regions // block_bytes)
        self._block = 1  # the first one of the group in hand
        self._region = 0

    def touch(self) -> bool:
        """Touch a slice, some blocks in one region, that is `SLICE_BYTES` at most. False if there is nothing to do."""
        pool = self._pool
        unused = pool.high + 1
        if self._region == 0:
            self._block = max(self._block, unused)
        if self._block >= min(pool.num_blocks, unused + self._ahead):
            return False
        stop = min(self._block + self._group, pool.num_blocks)
        if unused < stop:
            self._executor.touch_kv(self._region, max(self._block, unused), stop)
        self._region += 1
        if self._region >= self._executor.kv_regions:
            self._block, self._region = stop, 0
        return True
