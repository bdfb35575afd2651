"""How attention over a long sequence is cut, known to kernels and to the host that plans a step.

The softmax state starts anew at every multiple of `SPLIT` absolute positions, and the states of a row's splits are
merged in order. So splits may be computed by different threads, and it never shows in a result whether they were.
"""

from __future__ import annotations

from dataclasses import dataclass

SPLIT = 512
"""Positions per split: a multiple of the positions of one softmax update."""

ITEM_WIDTH = 6
"""Fields of an attention work item: sequence, first row, token count, position of the first token, split, partial row.

An item with split -1 stands for all positions of its tokens. Otherwise it stands for the positions of that split, the
tokens have an item for each of their splits, and the state of token t goes to row `partial` + t of the workspace; split
s has its rows s times the token count behind those of split 0. The items of splits 0 come before all others.
"""


@dataclass(frozen=True)
class Splitting:
    """What decides about splitting: threads of the executor, tasks that every item makes anyway (KV
    heads), rows of the workspace."""

    threads: int
    kv_heads: int
    rows: int


def split_count(length: int) -> int:
    """Splits of a sequence of `length` positions."""
    return -(-length // SPLIT)


def max_partials(max_model_len: int) -> int:
    """Rows of the workspace that partial states are kept in: four tokens that see the longest sequence."""
    return 4 * split_count(max_model_len)
