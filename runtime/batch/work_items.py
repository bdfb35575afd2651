"""The attention work items of a step: which tokens are computed together, and which long sequences by several threads.

An item is `ITEM_WIDTH` numbers (`inferir.ir.contract.split_kv`). Cutting a sequence into items of single splits changes
no bit of the result, so the choice may depend on threads and on what else is in the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.kv_reads import Reads
from inferir.ir.contract.split_kv import ITEM_WIDTH, SPLIT, Splitting, split_count
from inferir.runtime.batch.block_tables import table_start

Array = npt.NDArray[Any]

_SHARES = 4  # an item larger than this part of a thread's share of the step is split


@dataclass(frozen=True)
class _Placed:
    """Items in place: their positions in the input, the sequence (by its place in the step) of each, None for one of
    every sequence in order, and where its table begins, None for the start.
    """

    positions: Array
    seq: Array | None
    start: Array | None


@dataclass(frozen=True)
class StepItems:
    """Items in place, for every rule of reading: how many, and how many to merge."""

    total: int
    merges: int
    placed: list[_Placed]


class AttentionItems:
    """Fills the inputs with work items [A, ITEM_WIDTH], one for every rule of what a token reads.

    All of them have the same number of items, and as many to merge, for a step has these counts once: items of no
    tokens, which do nothing, fill up what is missing.
    """

    def __init__(self, items: Sequence[tuple[Array, Reads]], splitting: Splitting) -> None:
        self._items = items
        self._splitting = splitting

    def fill(self, row: Array, count: Array, start: Array, offset: Array, tile: int) -> StepItems:
        """Items of at most `tile` tokens. Per sequence: block-table row, tokens, first position, first token row."""
        per_seq = -(-count // tile)
        total = int(per_seq.sum())
        seq = np.repeat(np.arange(len(count)), per_seq)
        skipped = (np.arange(total) - np.repeat(np.cumsum(per_seq) - per_seq, per_seq)) * tile
        tokens = np.minimum(tile, count[seq] - skipped)
        columns = np.stack([row[seq], offset[seq] + skipped, tokens, start[seq] + skipped, seq, seq, seq], axis=1)
        found = []
        for _, reads in self._items:
            begin = table_start(reads, start)
            mine = columns.copy()
            mine[:, 3] -= begin[seq]
            found.append((begin, *self._cut(mine)))
        merges = max((m for _, _, m in found), default=0)
        total = max((len(mine) + merges - m for _, mine, m in found), default=0)
        placed = []
        for (items, reads), (begin, mine, own) in zip(self._items, found, strict=True):
            items[own:merges] = 0
            items[merges + len(mine) - own : total] = 0
            its = np.zeros(total, np.int64)
            for at, part in ((0, mine[:own]), (merges, mine[own:])):
                items[at : at + len(part)] = part[:, :ITEM_WIDTH]
                its[at : at + len(part)] = part[:, ITEM_WIDTH]
            one_each = merges == 0 and total == len(count)
            placed.append(_Placed(items[:total, 3], None if one_each else its, begin if reads.period else None))
        return StepItems(total, merges, placed)

    def advance(self, items: StepItems, position: Array) -> None:
        """Move the items of a decode step on: every sequence's token is now at `position`, in the same split."""
        for p in items.placed:
            its = position if p.start is None else position - p.start
            p.positions[:] = its if p.seq is None else its[p.seq]

    def steps(self, position: Array) -> int:
        """For how many steps, this one included, items and tables of tokens at `position` are right: until a token is
        the first of a split, or a table begins further on.
        """
        steps = int((SPLIT - position % SPLIT).min())
        for reads in (reads for _, reads in self._items if reads.period):
            begin = table_start(reads, position)
            later = range(1, steps)
            steps = 1 + bisect_left(later, True, key=lambda n: bool((table_start(reads, position + n) != begin).any()))
        return steps

    def _cut(self, columns: Array) -> tuple[Array, int]:
        """Items, with their sequence behind the fields, and how many of them, the first ones, are to be merged."""
        tokens, length = columns[:, 2], columns[:, 3] + columns[:, 2]
        parts = self._parts(tokens, length)
        merges = int(np.count_nonzero(parts))
        columns[:, 4:6] = (-1, 0)
        if merges:
            of, split, partial = _cut(tokens, parts)
            columns = columns[of]
            columns[:, 4], columns[:, 5] = split, partial
        return columns, merges

    def _parts(self, tokens: Array, length: Array) -> Array:
        """Into how many items each is cut, 0 for not at all: the largest are, as long as the workspace has room."""
        parts = np.zeros(len(tokens), np.int64)
        limits = self._splitting
        if limits.threads == 1 or length.max() <= SPLIT:
            return parts
        work = tokens * length
        large = (work * (_SHARES * limits.threads) > work.sum() * limits.kv_heads) & (length > SPLIT)
        room = limits.rows
        for i in np.flatnonzero(large)[np.argsort(-work[large], kind="stable")].tolist():
            rows = int(tokens[i]) * split_count(int(length[i]))
            if rows <= room:
                room -= rows
                parts[i] = split_count(int(length[i]))
        return parts


def _cut(tokens: Array, parts: Array) -> tuple[Array, Array, Array]:
    """The items after cutting item i into parts[i] splits: the item each comes from, its split, its workspace row.

    Splits 0 come first, in order, then all others, then what was not cut.
    """
    cut, whole = np.flatnonzero(parts), np.flatnonzero(parts == 0)
    parts, tokens = parts[cut], tokens[cut]
    first = np.cumsum(parts * tokens) - parts * tokens
    place = np.repeat(np.arange(len(cut)), parts)
    split = np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
    order = np.argsort(split > 0, kind="stable")
    place, split = place[order], split[order]
    of = np.concatenate([cut[place], whole])
    none = np.zeros(len(whole), np.int64)
    return of, np.concatenate([split, none - 1]), np.concatenate([first[place] + split * tokens[place], none])
