"""The inputs of `sample.draw` by name, for the compiler and for the runtime, which does not load the ops."""

from __future__ import annotations

from inferir.ir.graph.dtypes import DType

ROW_OPERANDS = (
    ("temperature", DType.F32),
    ("top_k", DType.I32),
    ("top_p", DType.F32),
    ("min_p", DType.F32),
    ("seed", DType.I32),
    ("counter", DType.I32),
    ("masked", DType.I32),
    ("bitmask", DType.I32),
    ("edit_begin", DType.I32),
    ("edit_count", DType.I32),
)
"""Operands of `sample.draw` with one entry per row, in order after the logits; `bitmask` has a row of words."""

EDIT_OPERANDS = (
    ("edit_ids", DType.I32),
    ("edit_bias", DType.F32),
    ("edit_repeat", DType.F32),
    ("edit_minus", DType.F32),
)
"""Operands of `sample.draw` with one entry per edit, in order after `ROW_OPERANDS`."""


def mask_words(vocabulary: int) -> int:
    """Words of 32 bits in a bitmask row for `vocabulary` logits; bit i % 32 of word i // 32 is token i."""
    return (vocabulary + 31) // 32
