"""Which blocks a sequence holds.

A spec names its manager (`KVCacheSpec.manager`); for one that says nothing the manager here keeps what its tokens read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from inferir.ir.contract.kv_specs import NULL_BLOCK, KVCacheSpec
from inferir.ir.errors import EngineError
from inferir.runtime.kv.block_pool import BlockPool

Find = Callable[[int], int | None]
"""The cached block for a sequence's j-th block, if there is one."""


@dataclass(slots=True)
class BlockTable:
    """Blocks of one sequence: `ids[j]` holds positions from j * block_size; entries before `first` are null.

    Managers set `changed` with every change; whoever keeps a copy clears it.
    """

    ids: list[int] = field(default_factory=list)
    first: int = 0
    changed: bool = True


class KVManager:
    """Block bookkeeping for one spec: a sequence keeps the blocks that its later tokens read. Those before are given
    back, and the null block takes their places.
    """

    def __init__(self, spec: KVCacheSpec, pool: BlockPool) -> None:
        self.block_size = spec.block_size
        self._first_block = spec.first_block
        self._reach = spec.reads.reach
        self._pool = pool

    def ready(self, table: BlockTable, computed: int, tokens: int) -> bool:
        """Whether `table` holds all that positions `computed` … tokens - 1 need, and nothing to give back."""
        return self._first_block(computed) <= table.first and len(table.ids) * self.block_size >= tokens

    def missing(self, table: BlockTable, tokens: int) -> int:
        """Blocks that `table` lacks to hold positions 0 … tokens - 1."""
        return max(0, -(-tokens // self.block_size) - len(table.ids))

    def extend(self, table: BlockTable, tokens: int) -> bool:
        """Give `table` the blocks it lacks for `tokens` tokens; False (and no change) if the pool has too few."""
        blocks = self._pool.allocate(self.missing(table, tokens))
        if blocks is None:
            return False
        table.ids += blocks
        table.changed = True
        return True

    def forget(self, table: BlockTable, computed: int) -> None:
        """Give back blocks that no position from `computed` on will read."""
        keep = min(self._first_block(computed), len(table.ids))
        if keep > table.first:
            self._pool.release(table.ids[table.first : keep])
            table.ids[table.first : keep] = [NULL_BLOCK] * (keep - table.first)
            table.first = keep
            table.changed = True

    def longest_hit(self, find: Find, limit: int) -> int:
        """The largest n up to `limit` such that all that the token after the first n blocks reads is cached."""
        blocks = limit
        while blocks:
            needed = range(blocks - 1, self._first_needed(blocks) - 1, -1)
            gap = next((j for j in needed if find(j) is None), None)
            if gap is None:
                return blocks
            blocks = gap  # every hit between reads the missing block too
        return 0

    def attach(self, table: BlockTable, find: Find, blocks: int) -> None:
        """Let an empty `table` hold the cached blocks of a hit of `blocks` blocks."""
        table.changed = True
        table.first = self._first_needed(blocks)
        table.ids += [NULL_BLOCK] * table.first
        for j in range(table.first, blocks):
            block = find(j)
            if block is None:
                raise EngineError(f"block {j} of a cached prefix is gone")
            self._pool.acquire(block)
            table.ids.append(block)

    def _first_needed(self, blocks: int) -> int:
        """The first of `blocks` blocks that the token after them reads; the last where it reads none, for a hit must be
        one.
        """
        return min(self._first_block(blocks * self.block_size), max(0, blocks - 1))

    def free(self, table: BlockTable) -> None:
        """Give back every block, the last one first, so that a shared beginning is reused last."""
        self._pool.release(reversed(table.ids))
        table.ids.clear()
        table.first = 0
        table.changed = True

    def peak(self, tokens: int, step_tokens: int) -> int:
        """The most blocks a sequence of `tokens` tokens ever holds if a step computes at most `step_tokens` of it."""
        whole = -(-tokens // self.block_size)
        if self._reach is None:
            return whole
        span = min(self._reach - 1 + step_tokens, tokens)
        return min(whole, -(-(span - 1) // self.block_size) + 1)


def manager_for(spec: KVCacheSpec, pool: BlockPool) -> KVManager:
    """The manager that the kind of `spec` names."""
    module, _, name = spec.manager.partition(":")
    manager: type[KVManager] = getattr(importlib.import_module(module), name)
    return manager(spec, pool)
