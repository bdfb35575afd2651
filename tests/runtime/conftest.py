"""A fake device: a paged cache and a "model" whose next token depends on every cached token it may see.

It reads the step's inputs exactly as kernels do, through block tables and slots, and fails loudly where they do not
lead to the token that was written for a position. So a test that compares its outputs with `reference` tests
scheduler, cache and batch together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from window_rule import reads

from inferir.ir.contract import split_kv as attn_split
from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.contract.split_kv import ITEM_WIDTH, Splitting
from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, WORDS, mask_words
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.graph.dtypes import DType
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_options import ModelLimits
from inferir.runtime.engine.scheduler import SchedulerOptions
from inferir.runtime.executor.base import OperationTimes, Step, StepOutputs
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.sampling.sampling_params import SamplingParams, seed_i32
from inferir.runtime.text.tokenizer import Tokenizer

VOCAB = 97
BLOCK = 4


def next_logits(tokens: Sequence[int], window: int) -> np.ndarray:
    """Logits after `tokens`, of which the last one reads as much as the rule of `window` says."""
    seen = tokens[max(0, reads(window).first(len(tokens) - 1)) :]
    state = len(tokens) * 7919
    for token in seen:
        state = (state * 31 + token * 17 + 5) % 1_000_003
    return np.random.default_rng(state).standard_normal(VOCAB).astype(np.float32)


def draw(logits: np.ndarray, temperature: float, seed: int, counter: int) -> int:
    if temperature == 0:
        return int(logits.argmax())
    noise = np.random.default_rng([seed & 0xFFFFFFFF, counter]).gumbel(size=VOCAB)
    return int((logits / temperature + noise).argmax())


def reference(prompt: Sequence[int], params: SamplingParams, count: int, window: int = 0) -> list[int]:
    """The first `count` tokens after `prompt`, computed without engine or cache."""
    tokens = list(prompt)
    for i in range(count):
        tokens.append(draw(next_logits(tokens, window), params.temperature, seed_i32(params.seed), i))
    return tokens[len(prompt) :]


def _sample_inputs(rows: int, edits: int) -> dict[str, np.ndarray]:
    kinds = {DType.F32: np.float32, DType.I32: np.int32}
    sizes = {"R": rows, "E": edits, WORDS: mask_words(VOCAB)}
    return {i.name: np.zeros([sizes[d] for d in i.dims], kinds[i.dtype]) for i in SAMPLE_INPUTS}


Owner = tuple[int, int, int]
"""Of a token in a table: its row, its position in the text, and that in the row."""


@dataclass
class FakeExecutor:
    """`windows` holds the rule of each KV table (see `window_rule`). `width`: tokens that a row brings, of which all
    but the first have no keys and values yet.
    """

    tables: tuple[Any, ...]
    windows: tuple[int, ...]
    num_blocks: int
    max_tokens: int
    max_seqs: int
    max_rows: int
    max_blocks: int
    tile: int = 3
    splitting: Splitting = field(default_factory=lambda: Splitting(threads=2, kv_heads=1, rows=8))
    steps: list[tuple[BatchDescriptor, StepCounts]] = field(default_factory=list)
    closed: bool = False
    has_argmax: bool = True
    width: int = 1
    threads: int = 2
    operation_times: OperationTimes | None = None
    timed: bool = False

    def __post_init__(self) -> None:
        i32, t = np.int32, self.max_tokens
        self.inputs: dict[str, np.ndarray] = {
            "ids": np.zeros(t, i32),
            "positions": np.zeros(t, i32),
            "rows": np.zeros(self.max_rows, i32),
            **_sample_inputs(self.max_rows, self.max_seqs * 200),
        }
        if self.has_argmax:
            self.inputs["argmax_rows"] = np.zeros(self.max_rows, i32)
        for table in self.tables:
            self.inputs[table.slots] = np.zeros(t, i32)
            self.inputs[table.items] = np.zeros((t + 100, ITEM_WIDTH), i32)
            self.inputs[table.block_tables] = np.full((self.max_seqs, self.max_blocks), -1, i32)
        self.cache = [np.full((self.num_blocks * BLOCK, 2), -1, i32) for _ in self.tables]

    def time_operations(self, wanted: bool) -> None:
        self.timed, self.operation_times = wanted, None

    def attn_tile(self, descriptor: BatchDescriptor) -> int:
        return 1 if descriptor.decode else self.tile

    def submit(self, step: Step) -> Step:
        return step

    def wait(self, handle: Step) -> StepOutputs:
        descriptor, counts = handle
        self.steps.append((descriptor, counts))
        x = self.inputs
        assert descriptor.tokens == counts.tokens <= self.max_tokens
        for table, cache in zip(self.tables, self.cache, strict=True):
            slots = x[table.slots][: counts.tokens]
            assert (slots >= BLOCK).all(), "a token was written to the null block"
            assert len(set(slots.tolist())) == counts.tokens, "two tokens share a slot"
            cache[slots, 0] = x["ids"][: counts.tokens]
            cache[slots, 1] = x["positions"][: counts.tokens]
        owners = {table.items: self._owners(table, descriptor, counts) for table in self.tables}
        owner = [[owners[table.items][t] for table in self.tables] for t in range(counts.tokens)]
        tokens = np.zeros((counts.rows, self.width), np.int32)
        logits = np.zeros((counts.rows, self.width, VOCAB), np.float32)
        for row, t in enumerate(x["rows"][: counts.rows].tolist()):
            sampling = float(x["temperature"][row]), int(x["seed"][row]), int(x["counter"][row])
            tokens[row], logits[row] = self._answer(owner[t], *sampling)
        argmax = np.zeros((counts.argmax, self.width), np.int32)
        for row in range(counts.argmax):
            argmax[row], _ = self._answer(owner[int(x["argmax_rows"][row])], 0.0, 0, 0)
        return StepOutputs(tokens, logits.reshape(-1, VOCAB), argmax)

    def _answer(self, owners: list[Owner], temperature: float, seed: int, counter: int) -> tuple[Any, Any]:
        """The tokens of a row and their logits."""
        after: list[int] = []
        logits = []
        for i in range(self.width):
            logits.append(self._logits(owners, after))
            after.append(draw(logits[-1], temperature, seed, counter + i))
        return after, logits

    def _owners(self, table: Any, descriptor: BatchDescriptor, counts: StepCounts) -> list[Owner]:
        """Of each token: its row, its position in the text, and that in the row, as the work items of a table say."""
        x, owner = self.inputs, {}
        items = x[table.items][: counts.items].tolist()
        self._check_splits(items, counts)
        for row, first, count, position, split, _ in items:
            if split > 0:
                continue
            assert 0 <= row < counts.seqs
            assert count <= self.attn_tile(descriptor)
            for i in range(count):
                assert first + i not in owner
                owner[first + i] = (row, int(x["positions"][first + i]), position + i)
        assert sorted(owner) == list(range(counts.tokens))
        return [owner[t] for t in range(counts.tokens)]

    def _check_splits(self, items: list[list[int]], counts: StepCounts) -> None:
        """Tokens whose splits have items of their own have one for each, with workspace rows of their own, in order."""
        splits: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for *tokens, split, partial in items:
            if split >= 0 and tokens[2]:
                splits.setdefault(tuple(tokens), []).append((split, partial))
        assert all(item[4] == 0 for item in items[: counts.merges])
        assert len(splits) == sum(item[2] > 0 for item in items[: counts.merges])
        used: list[int] = []
        for (_, _, count, position), parts in splits.items():
            parts.sort()
            base = parts[0][1]
            assert parts == [(s, base + s * count) for s in range(attn_split.split_count(position + count))]
            used += range(base, base + len(parts) * count)
        assert len(set(used)) == len(used)
        assert all(0 <= row < self.splitting.rows for row in used)

    def _logits(self, owners: list[Owner], after: Sequence[int] = ()) -> np.ndarray:
        """Sum over tables of what the model says after the tokens that each table still shows, and then `after`."""
        total = np.zeros(VOCAB, np.float32)
        for table, cache, window, owner in zip(self.tables, self.cache, self.windows, owners, strict=True):
            row, position, placed = owner
            start = position - placed
            assert start % BLOCK == 0
            assert start == 0 or window
            low = max(0, reads(window).first(position))
            where = np.arange(low, position + 1)
            assert low >= start
            blocks = self.inputs[table.block_tables][row, (where - start) // BLOCK]
            assert (blocks > 0).all(), "a visible position has no block"
            found = cache[blocks * BLOCK + where % BLOCK]
            assert (found[:, 1] == where).all(), "a block was reused while it was still visible"
            total += next_logits([0] * low + found[:, 0].tolist() + list(after), window)
        return total

    kv_bytes = 0
    kv_regions = 0

    def touch_kv(self, region: int, first: int, stop: int) -> None:
        raise AssertionError("there is no such memory")

    def close(self) -> None:
        self.closed = True


def make_engine(
    *,
    num_blocks: int = 64,
    max_seqs: int = 8,
    max_tokens: int = 16,
    max_model_len: int = 64,
    windows: tuple[int, ...] = (0,),
    eos: Sequence[int] = (),
    tokenizer: Tokenizer | None = None,
    max_rows: int | None = None,
    prefix_caching: bool = True,
    splitting: Splitting | None = None,
    **options: Any,
) -> Engine:
    size: dict[str, Any] = {"block_size": BLOCK, "kv_heads": 1, "head_dim": 2, "value_dim": 2, "dtype": DType.F32}
    groups = tuple(
        KVCacheGroup(
            spec=AttentionSpec(**size, reads=reads(w)),
            layers=(i,),
            block_tables=f"block_tables{i or ''}",
            slots=f"slots{i or ''}",
            items=f"attn_items{windows.index(w) or ''}",
        )
        for i, w in enumerate(windows)
    )
    executor = FakeExecutor(
        groups, windows, num_blocks, max_tokens, max_seqs, max_rows or max_seqs, -(-max_model_len // BLOCK)
    )
    if splitting is not None:
        executor.splitting = splitting
    return Engine(
        executor,
        KVCache(groups, BlockPool(num_blocks), prefix_caching=prefix_caching),
        SchedulerOptions(max_seqs=max_seqs, max_tokens=max_tokens, max_rows=max_rows or max_seqs, **options),
        ModelLimits(VOCAB, frozenset(eos), max_model_len),
        tokenizer,
        block_size=BLOCK,
    )


@pytest.fixture(name="make_engine")
def _make_engine() -> Callable[..., Engine]:
    return make_engine


@pytest.fixture(name="reference")
def _reference() -> Callable[..., list[int]]:
    return reference
