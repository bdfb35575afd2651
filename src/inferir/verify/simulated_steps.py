"""The inputs of steps, made without the runtime: what a reference run of a graph is fed, and what an engine is expected
to submit.

Every sequence has blocks of its own, which are handed out as its text grows, so that those of several sequences are
mixed. Tables begin with the first position of a sequence, and no sequence is split: a step's results do not depend on
either (`inferir.ir.contract.split_kv`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.split_kv import ITEM_WIDTH
from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, WORDS, mask_words
from inferir.ir.contract.symbols import Limits, StepCounts
from inferir.ir.graph.dtypes import torch_dtype
from inferir.verify.cases import Part


@dataclass(frozen=True)
class StepInputs:
    """Inputs of one step by name, the counts that kernels receive, and the token that each logit row is for."""

    values: Mapping[str, torch.Tensor]
    counts: StepCounts
    rows: tuple[int, ...]


class SimulatedSteps:
    """Makes the inputs of one step after the other, over `sequences` of token ids, whose prompts they are.

    vocabulary: how many logits a row has. all_rows: let every token of a step have a logit row, however many the
    artifact has room for.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[int]],
        groups: tuple[KVCacheGroup, ...],
        limits: Limits,
        vocabulary: int,
        *,
        all_rows: bool = False,
    ) -> None:
        self._sequences = sequences
        self._groups = groups
        self._limits = limits
        self._vocabulary = vocabulary
        self._all_rows = all_rows
        self._width = limits.bound("MB")
        self._tables = [torch.zeros(len(sequences), self._width, dtype=torch.int32) for _ in groups]
        self._held = [[0] * len(sequences) for _ in groups]
        self._next = [1] * len(groups)
        self._caches: dict[str, torch.Tensor] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks of every cache: those that all sequences need, and the null block."""
        size = self._limits.block_size
        return 1 + sum(-(-len(s) // size) for s in self._sequences)

    def caches(self) -> dict[str, torch.Tensor]:
        """The caches as the steps so far have left them, by the names of their inputs; at first they hold NaN, so that
        a read of what was never written shows. The caller may change them."""
        if not self._caches:
            for group in self._groups:
                for name, _, tensor in group.caches():
                    shape = (self.num_blocks, *tensor.shape)
                    self._caches[name] = torch.full(shape, float("nan"), dtype=torch_dtype(tensor.dtype))
        return self._caches

    def keep(self, outputs: Mapping[str, torch.Tensor]) -> None:
        """Take the caches that a step has left from its outputs."""
        self._caches.update({name: outputs[name] for name in self.caches() if name in outputs})

    def step(self, parts: Sequence[Part], tile: int | None = None) -> StepInputs:
        """The inputs of a step that computes `parts`, in work items of at most `tile` tokens (None: any number)."""
        tokens = [(p.sequence, i) for p in parts for i in range(p.start, p.start + p.count)]
        ids = [self._sequences[s][i] for s, i in tokens]
        lengths = [len(self._sequences[s]) for s, _ in tokens]
        values = {
            "ids": _ints(ids),
            "positions": _ints([i for _, i in tokens]),
            "lengths": _ints(lengths),
        }
        items = self._items(parts, tile)
        seqs = max(p.sequence for p in parts) + 1
        for number, group in enumerate(self._groups):
            for part in parts:
                self._extend(number, part.sequence, part.start + part.count)
            values[group.block_tables] = self._tables[number][:seqs].clone()
            values[group.slots] = _ints([self.slot(number, s, i) for s, i in tokens])
            if group.items is not None:
                values[group.items] = items
        rows = self._rows(len(tokens))
        values["rows"] = _ints(rows)
        values["argmax_rows"] = _ints(rows)
        values |= self._sampling(len(rows))
        counts = StepCounts(len(tokens), seqs, len(rows), len(items), 0, len(rows))
        return StepInputs(values, counts, tuple(rows))

    def slot(self, group: int, sequence: int, position: int) -> int:
        """The slot of a token in the caches of group number `group`."""
        size = self._limits.block_size
        return int(self._tables[group][sequence, position // size]) * size + position % size

    def _extend(self, group: int, sequence: int, tokens: int) -> None:
        wanted = -(-tokens // self._limits.block_size)
        for block in range(self._held[group][sequence], wanted):
            self._tables[group][sequence, block] = self._next[group]
            self._next[group] += 1
        self._held[group][sequence] = max(wanted, self._held[group][sequence])

    def _items(self, parts: Sequence[Part], tile: int | None) -> torch.Tensor:
        items, row = [], 0
        for part in parts:
            step = tile or part.count
            for done in range(0, part.count, step):
                items.append([part.sequence, row + done, min(step, part.count - done), part.start + done, -1, 0])
            row += part.count
        return torch.tensor(items, dtype=torch.int32).reshape(-1, ITEM_WIDTH)

    def _rows(self, tokens: int) -> list[int]:
        """Tokens whose logits are wanted, the last one first, so that their order counts."""
        most = tokens if self._all_rows else min(tokens, self._limits.bound("R"))
        return list(range(tokens - 1, tokens - 1 - most, -1))

    def _sampling(self, rows: int) -> dict[str, torch.Tensor]:
        sizes: dict[int | str, int] = {"R": rows, WORDS: mask_words(self._vocabulary), "E": 1}
        out = {}
        for given in SAMPLE_INPUTS:
            shape = tuple(sizes[d] for d in given.dims)
            out[given.name] = torch.full(shape, given.neutral or 0, dtype=torch_dtype(given.dtype))
        return out


def chunked(lengths: Sequence[int], chunks: Iterable[int], bucket: str = "") -> list[list[Part]]:
    """Steps over sequences of these lengths, side by side: of each at most `chunks[i]` tokens in step i, then one."""
    done, steps = [0] * len(lengths), []
    sizes = iter(chunks)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        size = next(sizes, 1)
        parts = [
            Part(bucket, "", i, d, min(size, n - d))
            for i, (d, n) in enumerate(zip(done, lengths, strict=True))
            if d < n
        ]
        steps.append(parts)
        for part in parts:
            done[part.sequence] += part.count
    return steps


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def given_to(graph: Any, available: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of the tensors that `graph` has inputs for, in the inputs' types."""
    types = {name: value.type for name, value in zip(graph.input_names, graph.inputs, strict=True)}
    return {name: available[name].to(torch_dtype(t.dtype)) for name, t in types.items() if name in available}
