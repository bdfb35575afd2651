"""The cache as the scheduler sees it: make room for tokens of a sequence, or say that there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs
from inferir.ir.system.quantities import count, size
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.managers import BlockTable, Find, manager_for
from inferir.runtime.kv.prefix_cache import BlockHashes, PrefixCache, PrefixKey


def _nothing(block: int) -> bool:
    return False


SequenceBlocks = tuple[BlockTable, ...]
"""The blocks of one sequence, one table per group."""


class KVCache:
    """All block tables over one pool. Room is made for all of a sequence's tables or for none.

    With `prefix_caching`, blocks that were committed can be attached to later sequences that begin alike, for as long
    as the pool does not reuse them. That needs tables of one block size; otherwise `prefix` is None.
    """

    def __init__(self, groups: tuple[KVCacheGroup, ...], pool: BlockPool, *, prefix_caching: bool = False) -> None:
        self.groups = groups
        self.pool = pool
        self.block_bytes = plan_slabs(groups).block_bytes
        self._managers = tuple(manager_for(g.spec, pool) for g in groups)
        sizes = {g.spec.block_size for g in groups}
        self.prefix = PrefixCache() if prefix_caching and len(sizes) == 1 else None
        self.block_size = next(iter(sizes), 1)
        if self.prefix is not None:
            pool.on_reuse = self.prefix.forget
        pool.keeps = _nothing if self.prefix is None else self.prefix.holds

    def new_sequence(self) -> SequenceBlocks:
        return tuple(BlockTable() for _ in self._managers)

    def hashes(self, key: PrefixKey) -> BlockHashes | None:
        """The hash chain of a new sequence; None without prefix caching."""
        return None if self.prefix is None else BlockHashes(key, self.block_size, self.prefix.secret)

    def attach(self, blocks: SequenceBlocks, hashes: Sequence[bytes]) -> int:
        """Give a sequence without blocks the longest cached beginning among its first blocks; its length in tokens."""
        finds = [self._find(table, hashes) for table in range(len(self._managers))]
        hit, before = len(hashes), -1
        while hit != before:  # a shorter hit of one table may be none for another
            before = hit
            for manager, find in zip(self._managers, finds, strict=True):
                hit = manager.longest_hit(find, hit)
        for manager, table, find in zip(self._managers, blocks, finds, strict=True):
            manager.attach(table, find, hit)
        return hit * self.block_size

    def commit(self, blocks: SequenceBlocks, hashes: Sequence[bytes], start: int, stop: int) -> None:
        """Let later sequences find blocks `start` … `stop` - 1, whose keys and values have been computed."""
        if self.prefix is None:
            return
        for index, table in enumerate(blocks):
            for j in range(start, stop):
                self.prefix.add(index, hashes[j], table.ids[j])

    def _find(self, table: int, hashes: Sequence[bytes]) -> Find:
        prefix = self.prefix
        return lambda j: None if prefix is None else prefix.find(table, hashes[j])

    def missing(self, blocks: SequenceBlocks, tokens: int) -> int:
        """Blocks that must be free so that positions 0 … tokens - 1 have slots."""
        return sum(m.missing(t, tokens) for m, t in zip(self._managers, blocks, strict=True))

    def reserve(self, blocks: SequenceBlocks, computed: int, tokens: int) -> bool:
        """Drop what positions from `computed` on no longer read, then make room up to position `tokens` - 1.

        False if too few blocks are free; the sequence then holds no more than before.
        """
        for manager, table in zip(self._managers, blocks, strict=True):
            if not manager.ready(table, computed, tokens):
                break
        else:
            return True
        for manager, table in zip(self._managers, blocks, strict=True):
            manager.forget(table, computed)
        missing = self.missing(blocks, tokens)
        if missing == 0 or missing > self.pool.num_free:
            return missing == 0
        for manager, table in zip(self._managers, blocks, strict=True):
            manager.extend(table, tokens)
        return True

    def free(self, blocks: SequenceBlocks) -> None:
        for manager, table in zip(self._managers, blocks, strict=True):
            manager.free(table)

    def peak(self, tokens: int, step_tokens: int) -> int:
        """The most blocks one sequence of `tokens` tokens ever holds, computed at most `step_tokens` at a time."""
        return sum(m.peak(tokens, step_tokens) for m in self._managers)

    def text(self, tokens: int, step_tokens: int) -> str:
        """Its size, and what a sequence of `tokens` tokens takes of it in each group, for people."""
        blocks = self.pool.num_blocks - 1
        pairs = zip(self.groups, self._managers, strict=True)
        kinds = Counter((g.spec.text, m.peak(tokens, step_tokens)) for g, m in pairs)
        each = "; ".join(f"{peak:,} for each of {count(n, 'group')} of {text}" for (text, peak), n in kinds.items())
        takes = f"; a sequence of {tokens:,} tokens takes at most {each}" if each else ""
        return f"{size(blocks * self.block_bytes)} in {count(blocks, 'block')}{takes}"

    def demand(self, blocks: SequenceBlocks, tokens: int, step_tokens: int) -> int:
        """Blocks that a sequence will still take on its way to `tokens` tokens, `step_tokens` at a time."""
        return sum(
            max(0, min(m.missing(t, tokens), m.peak(tokens, step_tokens) - (len(t.ids) - t.first)))
            for m, t in zip(self._managers, blocks, strict=True)
        )

    def capacity(self, limit: int, step_tokens: int) -> int:
        """The longest sequence (at most `limit` tokens) that the whole pool can hold."""
        available = self.pool.num_blocks - 1
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.peak(middle, step_tokens) <= available:
                low = middle
            else:
                high = middle - 1
        return low
