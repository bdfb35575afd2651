"""The inputs of a step: what each holds, who fills it, and which of them `sample.draw` takes.

Passes add inputs as this table declares them, the runtime fills them by their writer. A sampling parameter that the
kernel reads is a row with the writer PARAMS here, and a field of that name of `SamplingParams`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from inferir.ir.contract.split_kv import ITEM_WIDTH
from inferir.ir.graph.dtypes import DType

WORDS = "words"
"""Dimension that the model's vocabulary decides: `mask_words`."""


class Writer(enum.Enum):
    """Who fills an input."""

    BATCH = "the input batch, in every step"
    PARAMS = "the field of that name of a request's sampling parameters, when it gets a row"
    REQUEST = "the attribute of that name of a request, when it gets a row"
    SAMPLE = "the sampling rows, in every step"


@dataclass(frozen=True)
class StepInput:
    """An input: `dims` are numbers, symbols (`symbols.SYMBOLS`) and `WORDS`.

    neutral: the value that leaves a row's logits as they are and takes the most likely token (None: any value does).
    optional: only some models have it.
    """

    name: str
    dtype: DType
    dims: tuple[int | str, ...]
    writer: Writer
    meaning: str
    neutral: float | None = 0
    optional: bool = False


def _batch(name: str, dims: tuple[int | str, ...], meaning: str, optional: bool = False) -> StepInput:
    return StepInput(name, DType.I32, dims, Writer.BATCH, meaning, None, optional)


BATCH_INPUTS = (
    _batch("ids", ("T",), "token ids"),
    _batch("positions", ("T",), "positions of the tokens in their sequences"),
    _batch("lengths", ("T",), "length of the prompt, or position + 1 beyond it", optional=True),
    _batch("rows", ("R",), "tokens whose logits are wanted"),
    _batch("argmax_rows", ("G",), "tokens of which only the most likely next one is wanted", optional=True),
)

KV_INPUTS = (
    _batch("slots", ("T",), "cache slot that a token is written to", optional=True),
    _batch("block_tables", ("S", "MB"), "KV blocks of each sequence", optional=True),
    _batch("attn_items", ("A", ITEM_WIDTH), "attention work items (`split_kv`)", optional=True),
)
"""What a KV group has of its own; groups say under which names (`kv_groups.KVCacheGroup`)."""

SAMPLE_INPUTS = (
    StepInput("temperature", DType.F32, ("R",), Writer.PARAMS, "0 takes the most likely token"),
    StepInput("top_k", DType.I32, ("R",), Writer.PARAMS, "how many of the largest are kept; all if not positive"),
    StepInput("top_p", DType.F32, ("R",), Writer.PARAMS, "share of the mass that is kept", neutral=1),
    StepInput("min_p", DType.F32, ("R",), Writer.PARAMS, "least likelihood, as a share of the largest"),
    StepInput("seed", DType.I32, ("R",), Writer.REQUEST, "what the noise is made of"),
    StepInput("counter", DType.I32, ("R",), Writer.SAMPLE, "number of the token, for the noise"),
    StepInput("masked", DType.I32, ("R",), Writer.SAMPLE, "whether `bitmask` says which tokens may be drawn"),
    StepInput("bitmask", DType.I32, ("R", WORDS), Writer.SAMPLE, "a bit per token, in 32-bit words", neutral=None),
    StepInput("edit_begin", DType.I32, ("R",), Writer.SAMPLE, "first of the row's edits"),
    StepInput("edit_count", DType.I32, ("R",), Writer.SAMPLE, "how many edits the row has"),
    StepInput("edit_ids", DType.I32, ("E",), Writer.SAMPLE, "token that an edit changes", neutral=None),
    StepInput("edit_bias", DType.F32, ("E",), Writer.SAMPLE, "added to its logit", neutral=None),
    StepInput("edit_multiplier", DType.F32, ("E",), Writer.SAMPLE, "divides a positive logit, multiplies others", None),
    StepInput("edit_offset", DType.F32, ("E",), Writer.SAMPLE, "subtracted in the end", neutral=None),
)
"""The operands of `sample.draw` after the logits, in order: a row's parameters, then the edits of all rows."""

STEP_INPUTS = {i.name: i for i in (*BATCH_INPUTS, *KV_INPUTS, *SAMPLE_INPUTS)}


def mask_words(vocabulary: int) -> int:
    """Words of 32 bits in a bitmask row for `vocabulary` logits; bit i % 32 of word i // 32 is token i."""
    return (vocabulary + 31) // 32
