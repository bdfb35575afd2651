"""Block tables and slots of the step: per KV group, which blocks hold a sequence's positions and where its tokens go.

A row of a table need not begin at the sequence's first position. Where tokens read a bounded number of positions it
begins with the first split (`inferir.ir.contract.split_kv`) that the step's first token reads, and kernels count
positions, splits included, from there: so they see nothing of what lies before, and results are the same, for they
depend on absolute positions through splits and periods (`Reads.period`) only. Splits are whole blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_reads import Reads
from inferir.ir.contract.split_kv import SPLIT
from inferir.runtime.requests.request import Request

Array = npt.NDArray[Any]


def table_start(reads: Reads, position: Array) -> Array:
    """The positions that tables of sequences begin with whose first tokens of the step are at `position`."""
    if not reads.period:
        return np.zeros_like(position)
    unit = math.lcm(SPLIT, reads.period)
    first: Array = np.maximum(0, reads.first(position))
    return first // unit * unit


class BlockTables:
    """The inputs `block_tables` [S, MB] and `slots` [T] (i32) of every group, by request row.

    The tables are kept between steps; only what changed of a request's blocks is copied.
    """

    def __init__(
        self, inputs: Mapping[str, Array], groups: tuple[KVCacheGroup, ...], max_seqs: int, block_size: int
    ) -> None:
        self._block_size = block_size
        self._reads = [g.spec.reads for g in groups]
        self._moves = [reads.period > 0 for reads in self._reads]  # whether tables begin further on as texts grow
        self._tables = [inputs[g.block_tables] for g in groups]
        self._slots = [inputs[g.slots] for g in groups]
        self._start = np.zeros((len(groups), max_seqs), np.int64)  # first block of every row
        self._copied = self._start.tolist()  # blocks of the sequence that the row has, and the null ones among them
        self._nulled = self._start.tolist()

    def bind(self, request: Request) -> None:
        """A request got its row, whose content is that of another."""
        self._start[:, request.row] = 0
        for copied, nulled, blocks in zip(self._copied, self._nulled, request.blocks, strict=True):
            copied[request.row] = nulled[request.row] = 0
            blocks.changed = True

    def update(self, request: Request) -> None:
        """Copy new block ids into the request's rows, and the null block over those given back."""
        row = request.row
        for index, blocks in enumerate(request.blocks):
            if not blocks.changed:
                continue
            blocks.changed = False
            table, start = self._tables[index][row], int(self._start[index, row])
            copied, nulled = self._copied[index][row], self._nulled[index][row]
            if blocks.first > nulled:
                table[max(0, nulled - start) : max(0, blocks.first - start)] = 0
                self._nulled[index][row] = blocks.first
            if len(blocks.ids) > copied:
                table[copied - start : len(blocks.ids) - start] = blocks.ids[copied:]
                self._copied[index][row] = len(blocks.ids)

    def move_on(self, requests: list[Request], row: Array, position: Array) -> None:
        """Let the tables of requests in these rows begin where tokens from `position` [requests] on need them to."""
        for index, reads in enumerate(self._reads):
            if not self._moves[index]:
                continue
            start = table_start(reads, position) // self._block_size
            for i in np.flatnonzero(start != self._start[index, row]).tolist():
                ids = requests[i].blocks[index].ids[int(start[i]) :]
                self._start[index, row[i]] = start[i]
                self._tables[index][row[i], : len(ids)] = ids

    def fill_slots(self, row: Array, position: Array) -> None:
        """The slot of each token, given its request row and position."""
        block = position // self._block_size
        within = position - block * self._block_size
        for moves, table, slots, start in zip(self._moves, self._tables, self._slots, self._start, strict=True):
            blocks = table[row, block - start[row] if moves else block]
            slots[: len(row)] = blocks * self._block_size + within

    def begins(self, position: Array) -> list[list[int]]:
        """Of tokens at `position` that move on by one position a step: those that are the first of a block after no
        step, after one, and so on up to `block_size` - 1 steps.
        """
        out: list[list[int]] = [[] for _ in range(self._block_size)]
        for token, steps in enumerate((-position % self._block_size).tolist()):
            out[steps].append(token)
        return out

    def next_slots(self, requests: list[Request], position: Array, begins: list[int]) -> None:
        """`fill_slots` for requests of one token each that had the slots before `position`; see `begins`."""
        for index, slots in enumerate(self._slots):
            slots[: len(requests)] += 1
            for i in begins:
                slots[i] = requests[i].blocks[index].ids[int(position[i]) // self._block_size] * self._block_size
