"""Blocks of the KV cache: reference counts and a free list in LRU order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inferir.ir.contract.kv_specs import NULL_BLOCK
from inferir.ir.errors import EngineError


class BlockPool:
    """Hands out block ids 1 … num_blocks - 1; block 0 is the null block and never moves.

    Every operation costs O(1) per block. The free list is a doubly linked list over block ids, with the null block as
    its sentinel: blocks are taken from the front, and returned at the back, so the block that was unused for longest
    is reused first. Until then it keeps its content; `on_reuse` is told of every block that loses it. A block whose
    content `keeps` says nobody will want goes to the front: its memory is in the caches, and no other need be touched.

    high: the highest block id that was ever handed out.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise EngineError(f"a KV cache of {num_blocks} blocks holds nothing; give it more memory")
        self.num_blocks = num_blocks
        self.on_reuse: Callable[[int], None] | None = None
        self.keeps: Callable[[int], bool] | None = None
        self.high = 0
        self._refs = [0] * num_blocks
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self._num_free = num_blocks - 1

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self._num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that is in use, 0 … 1."""
        return self.num_used / (self.num_blocks - 1)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and no change) if fewer are free."""
        if count > self._num_free:
            return None
        out: list[int] = []
        block = self._next[NULL_BLOCK]
        for _ in range(count):
            out.append(block)
            self._refs[block] = 1
            block = self._next[block]
        if out:
            self._next[NULL_BLOCK] = block
            self._prev[block] = NULL_BLOCK
            self._num_free -= count
            self.high = max(self.high, *out)
        if self.on_reuse is not None:
            for taken in out:
                self.on_reuse(taken)
        return out

    def acquire(self, block: int) -> None:
        """Add a reference; a free block leaves the free list with its content intact. The null block is not counted."""
        if block == NULL_BLOCK:
            return
        if self._refs[block] == 0:
            before, after = self._prev[block], self._next[block]
            self._next[before] = after
            self._prev[after] = before
            self._num_free -= 1
        self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; a block without references becomes the last to be reused, or the first."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._refs[block] <= 0:
                raise EngineError(f"KV block {block} was released twice")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                kept = self.keeps is None or self.keeps(block)
                before, after = (self._prev[NULL_BLOCK], NULL_BLOCK) if kept else (NULL_BLOCK, self._next[NULL_BLOCK])
                self._next[before] = self._prev[after] = block
                self._prev[block], self._next[block] = before, after
                self._num_free += 1
