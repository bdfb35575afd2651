"""The attention work items of a step: which tokens are computed together, and which long sequences by several threads.

An item is `ITEM_WIDTH` numbers (`inferir.ir.contract.split_kv`). Cutting a sequence into items of single splits changes
no bit of the result, so the choice may depend on threads and on what else is in the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.split_kv import SPLIT, Splitting, split_count

Array = npt.NDArray[Any]

_SHARES = 4  # an item larger than this part of a thread's share of the step is split


@dataclass(frozen=True)
class StepItems:
    """Items in place: how many, how many to merge, and the sequence (by its place in the step) of each."""

    total: int
    merges: int
    seq: Array


class AttentionItems:
    """Fills the input `attn_items` [A, ITEM_WIDTH]."""

    def __init__(self, items: Array, splitting: Splitting) -> None:
        self._items = items
        self._splitting = splitting

    def fill(self, row: Array, count: Array, start: Array, offset: Array, tile: int) -> StepItems:
        """Items of at most `tile` tokens. Per sequence: block-table row, tokens, first position, first token row."""
        per_seq = -(-count // tile)
        total = int(per_seq.sum())
        seq = np.repeat(np.arange(len(count)), per_seq)
        skipped = (np.arange(total) - np.repeat(np.cumsum(per_seq) - per_seq, per_seq)) * tile
        tokens = np.minimum(tile, count[seq] - skipped)
        position = start[seq] + skipped
        parts = self._parts(tokens, position + tokens)
        merges = int(np.count_nonzero(parts))
        split: Array | int = -1
        partial: Array | int = 0
        if merges:
            of, split, partial = _cut(tokens, parts)
            total = len(of)
            seq, skipped, tokens, position = seq[of], skipped[of], tokens[of], position[of]
        items = self._items
        items[:total, 0] = row[seq]
        items[:total, 1] = offset[seq] + skipped
        items[:total, 2] = tokens
        items[:total, 3] = position
        items[:total, 4] = split
        items[:total, 5] = partial
        return StepItems(total, merges, seq)

    def advance(self, items: StepItems, position: Array) -> None:
        """Move the items of a decode step on: every sequence's token is now at `position`, in the same split."""
        self._items[: items.total, 3] = position[items.seq] if items.merges else position

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
