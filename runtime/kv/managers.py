"""Which blocks a sequence holds, by kind of cache.

A spec names its manager (`KVCacheSpec.manager`); one that says nothing has that of its base class.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from inferir.ir.contract.kv_specs import NULL_BLOCK, KVCacheSpec, SlidingWindowSpec
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
    """Block bookkeeping for one spec; the base keeps every block until the sequence is freed."""

    def __init__(self, spec: KVCacheSpec, pool: BlockPool) -> None:
        self.block_size = spec.block_size
        self._pool = pool

    def ready(self, table: BlockTable, computed: int, tokens: int) -> bool:
        """Whether `table` holds all that positions `computed` … tokens - 1 need, and nothing to give back."""
        return len(table.ids) * self.block_size >= tokens

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

    def longest_hit(self, find: Find, limit: int) -> int:
        """The largest n up to `limit` such that all that the token after the first n blocks reads is cached."""
        return next((j for j in range(limit) if find(j) is None), limit)

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
        """The first of `blocks` blocks that the token after them reads."""
        return 0

    def free(self, table: BlockTable) -> None:
        """Give back every block, the last one first, so that a shared beginning is reused last."""
        self._pool.release(reversed(table.ids))
        table.ids.clear()
        table.first = 0
        table.changed = True

    def peak(self, tokens: int, step_tokens: int) -> int:
        """The most blocks a sequence of `tokens` tokens ever holds if a step computes at most `step_tokens` of it."""
        return -(-tokens // self.block_size)


class FullAttentionManager(KVManager):
    """Keeps everything."""


class SlidingWindowManager(KVManager):
    """Gives back the blocks that lie wholly behind the window and puts the null block in their place."""

    def __init__(self, spec: SlidingWindowSpec, pool: BlockPool) -> None:
        super().__init__(spec, pool)
        self.window = spec.window

    def ready(self, table: BlockTable, computed: int, tokens: int) -> bool:
        seen = (computed - self.window + 1) // self.block_size
        return seen <= table.first and super().ready(table, computed, tokens)

    def forget(self, table: BlockTable, computed: int) -> None:
        keep = min(max(0, computed - self.window + 1) // self.block_size, len(table.ids))
        if keep > table.first:
            self._pool.release(table.ids[table.first : keep])
            table.ids[table.first : keep] = [NULL_BLOCK] * (keep - table.first)
            table.first = keep
            table.changed = True

    def longest_hit(self, find: Find, limit: int) -> int:
        blocks = limit
        while blocks:
            needed = range(blocks - 1, self._first_needed(blocks) - 1, -1)
            gap = next((j for j in needed if find(j) is None), None)
            if gap is None:
                return blocks
            blocks = gap  # every hit between reads the missing block too
        return 0

    def _first_needed(self, blocks: int) -> int:
        if blocks == 0:
            return 0
        behind = max(0, blocks * self.block_size - self.window + 1) // self.block_size
        return min(behind, blocks - 1)  # a window of one token reads nothing, yet a hit must be one

    def peak(self, tokens: int, step_tokens: int) -> int:
        span = min(self.window - 1 + step_tokens, tokens)
        return min(super().peak(tokens, step_tokens), -(-(span - 1) // self.block_size) + 1)


def manager_for(spec: KVCacheSpec, pool: BlockPool) -> KVManager:
    """The manager that the kind of `spec` names. Raises `EngineError` if it names none."""
    module, _, name = spec.manager.partition(":")
    if not module:
        raise EngineError(f"no KV cache manager for {type(spec).__name__}")
    manager: type[KVManager] = getattr(importlib.import_module(module), name)
    return manager(spec, pool)
