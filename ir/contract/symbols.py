"""The sizes of a step that are only known when it runs: what each stands for, what bounds it, and how it is counted.

Everything that depends on the set of symbols is read off this table: the dimensions of the IR, the counts that kernels
receive and their order, the size of inputs, outputs and arena. A new symbol is a row here, and a field of `StepCounts`
if kernels are to receive its value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from inferir.ir.contract.split_kv import max_partials

EDITS_PER_ROW = 4096
"""Edits of a logit row beyond those of the tokens of its text."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact is compiled for: the largest step, and the longest sequence.

    max_model_len: tokens per sequence; max_tokens, max_seqs, max_rows: tokens, sequences and logit rows per step;
    block_size: token slots per KV block.
    """

    max_model_len: int
    max_tokens: int
    max_seqs: int
    max_rows: int
    block_size: int

    def bound(self, symbol: str) -> int:
        """The largest value of a symbol. Raises KeyError for one that is unknown, or that no limit bounds."""
        bound = SYMBOLS[symbol].bound
        if bound is None:
            raise KeyError(symbol)
        return bound(self)

    @property
    def bounds(self) -> dict[str, int]:
        """The largest value of every symbol that has one, by name."""
        return {s.name: s.bound(self) for s in SYMBOLS.values() if s.bound is not None}


@dataclass(frozen=True)
class Symbol:
    """A positive integer that is known when a step runs.

    bound: its largest value (None: the machine that serves decides); count: the field of `StepCounts` with its value,
    if kernels receive it.
    """

    name: str
    meaning: str
    bound: Callable[[Limits], int] | None
    count: str | None = None


class StepCounts(NamedTuple):
    """What a step consists of: the values of the counted symbols, in the order in which kernels receive them."""

    tokens: int
    seqs: int
    rows: int
    items: int
    merges: int = 0
    argmax: int = 0


def _rows(limits: Limits) -> int:
    return min(limits.max_rows, limits.max_tokens)


def _items(limits: Limits) -> int:
    """An attention work item has a token of its own, or a row of the workspace for partial states; or it does nothing,
    where layers with another window have one to be merged, which has two rows."""
    partials = max_partials(limits.max_model_len)
    return limits.max_tokens + partials + partials // 2


def _edits(limits: Limits) -> int:
    """A row may edit every token of its text, for penalties, and `EDITS_PER_ROW` others."""
    return _rows(limits) * (limits.max_model_len + EDITS_PER_ROW)


SYMBOLS = {
    symbol.name: symbol
    for symbol in (
        Symbol("T", "tokens in this step", lambda limits: limits.max_tokens, "tokens"),
        Symbol("S", "sequences in this step", lambda limits: limits.max_seqs, "seqs"),
        Symbol("R", "rows whose logits are wanted", _rows, "rows"),
        Symbol("G", "rows whose most likely token is wanted, and nothing else of their logits", _rows, "argmax"),
        Symbol("A", "attention work items", _items, "items"),
        Symbol("M", "attention work items of splits that are to be merged, one per merge", _items, "merges"),
        Symbol("E", "edits of logits, all rows together", _edits),
        Symbol(
            "MB",
            "KV blocks per sequence: the width of block tables",
            lambda limits: -(-limits.max_model_len // limits.block_size),
        ),
        Symbol("NB", "KV blocks in the pool", None),
    )
}

_BY_FIELD = {symbol.count: symbol for symbol in SYMBOLS.values()}
COUNTED = tuple(_BY_FIELD[field] for field in StepCounts._fields)
"""The symbols whose values kernels receive, in the order of `StepCounts`."""
