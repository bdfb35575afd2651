"""The step's inputs, kept between steps and filled without touching tokens one by one.

A running request owns a row. Its tokens, its block table and its sampling parameters stay in that row, so a step
copies only what is new. The block-table inputs are that storage themselves, which is why work items name rows: S counts
rows up to the last one in use.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.symbols import StepCounts
from inferir.runtime.batch.block_tables import BlockTables
from inferir.runtime.batch.sampling_rows import SamplingRows
from inferir.runtime.batch.work_items import AttentionItems, StepItems
from inferir.runtime.executor.base import Executor
from inferir.runtime.requests.request import Request, Scheduled

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PreparedStep:
    """A step whose inputs are in place. `sampled` are the requests that get a token: in the order of the logit rows,
    then in that of the arg-max rows.
    """

    descriptor: BatchDescriptor
    counts: StepCounts
    sampled: list[Request]


@dataclass
class _Decode:
    """A step that gave each of its requests one token: their rows and positions [requests] i64, the attention items
    and for how many steps these are right, the requests that begin a block after some steps, and the steps since.
    """

    requests: list[Request]
    row: Array
    position: Array
    step: PreparedStep
    items: StepItems
    steps: int
    begins: list[list[int]]
    past: int = 0


class InputBatch:
    """Rows of running requests over the executor's input arrays.

    Inputs (by name, all C-contiguous): ids [T], positions [T], rows [R] i32; those of the draw, which `SamplingRows`
    fills (`ir/contract/step_inputs.py`); those of the KV groups, i32: slots [T] and block tables [S, MB]
    (`BlockTables`), and work items [A, 6] (`AttentionItems`). Models whose rotary frequencies depend on the sequence
    also have lengths [T] i32: the prompt's length, or position + 1 beyond the prompt. Artifacts that can find the most
    likely token without logits have argmax_rows [G] i32.
    """

    def __init__(
        self,
        executor: Executor,
        groups: tuple[KVCacheGroup, ...],
        *,
        max_seqs: int,
        max_model_len: int,
        block_size: int,
    ) -> None:
        self._executor = executor
        self._inputs: Mapping[str, Array] = executor.inputs
        self._tables = BlockTables(self._inputs, groups, max_seqs, block_size)
        self._free_rows = list(range(max_seqs))  # a heap: the lowest row first keeps S small
        self._used_rows: set[int] = set()
        self._tokens = np.zeros((max_seqs, max_model_len), np.int32)
        items = {g.items: (self._inputs[g.items], g.spec.reads) for g in groups if g.items is not None}
        self._items = AttentionItems(list(items.values()), executor.splitting)
        self.sampling = SamplingRows(executor.inputs, max_seqs)
        self._prompt = np.zeros(max_seqs, np.int32)  # lengths of prompts
        self._argmax = np.zeros(max_seqs, np.bool_)  # rows that go without logits
        self._last: _Decode | None = None

    def prepare(self, scheduled: Sequence[Scheduled]) -> PreparedStep:
        """Fill the inputs for a step. Requests that are new to the batch get a row."""
        for request, _ in scheduled:
            if request.row < 0:
                self._bind(request)
            for blocks in request.blocks:
                if blocks.changed:
                    self._tables.update(request)
                    break
        requests = [s.request for s in scheduled]
        if self._last is not None and self._last.requests == requests and self.sampling.plain:
            return self._advance(self._last)
        row = np.array([r.row for r in requests], np.int64)
        count = np.array([s.tokens for s in scheduled], np.int64)
        start = np.array([r.computed for r in requests], np.int64)
        last = np.array([r.remaining for r in requests], np.int64) == count
        total = int(count.sum())
        descriptor = BatchDescriptor(total, total == len(requests))
        offset = np.cumsum(count) - count
        self._tables.move_on(requests, row, start)
        self._fill_tokens(row, count, start, offset, total)
        items = self._items.fill(row, count, start, offset, self._executor.attn_tile(descriptor))
        sampled = [r for r, ends in zip(requests, last, strict=True) if ends]
        sampled, argmax = self._fill_rows(row[last], (offset + count - 1)[last], sampled)
        rows = len(sampled) - argmax
        counts = StepCounts(total, max(self._used_rows) + 1, rows, items.total, items.merges, argmax)
        step = PreparedStep(descriptor, counts, sampled)
        decode = len(sampled) == total
        self._last = None
        if decode:
            steps, begins = self._items.steps(start), self._tables.begins(start)
            self._last = _Decode(requests, row, start, step, items, steps, begins)
        return step

    def _advance(self, last: _Decode) -> PreparedStep:
        """The step after `last` for the same requests, each with the token that it got: only positions move on."""
        position, total = last.position, len(last.requests)
        position += 1
        inputs = self._inputs
        inputs["positions"][:total] = position
        inputs["ids"][:total] = self._tokens[last.row, position]
        if "lengths" in inputs:
            np.maximum(self._prompt[last.row], position + 1, out=inputs["lengths"][:total])
        inputs["counter"][:total] += 1
        last.steps -= 1
        if last.steps:
            self._items.advance(last.items, position)
        else:
            self._tables.move_on(last.requests, last.row, position)
            self._renew_items(last)
        last.past += 1
        self._tables.next_slots(last.requests, position, last.begins[last.past % len(last.begins)])
        return last.step

    def _renew_items(self, last: _Decode) -> None:
        """The attention items of a step that those of the one before are wrong for."""
        step, ones = last.step, np.ones(len(last.requests), np.int64)
        tile = self._executor.attn_tile(step.descriptor)
        last.items = self._items.fill(last.row, ones, last.position, np.arange(len(ones)), tile)
        counts = step.counts._replace(items=last.items.total, merges=last.items.merges)
        last.step = replace(step, counts=counts)
        last.steps = self._items.steps(last.position)

    def append(self, request: Request, tokens: Sequence[int]) -> None:
        """Add the tokens that a step brought to the request and to its row."""
        for token in tokens:
            if request.num_tokens < self._tokens.shape[1]:
                self._tokens[request.row, request.num_tokens] = token
            request.outputs.append(token)
            self.sampling.append(request.row, token)
        if len(tokens) > 1:
            self._last = None  # all but the last have no keys and values yet

    def release(self, request: Request) -> None:
        """Give back the row of a request that no longer runs."""
        if request.row >= 0:
            self._last = None
            self.sampling.release(request.row)
            self._used_rows.remove(request.row)
            heapq.heappush(self._free_rows, request.row)
            request.row = -1

    def _bind(self, request: Request) -> None:
        row = request.row = heapq.heappop(self._free_rows)
        self._used_rows.add(row)
        prompt = self._prompt[row] = len(request.prompt)
        self._tokens[row, :prompt] = request.prompt
        self._tokens[row, prompt : request.num_tokens] = request.outputs
        self._argmax[row] = request.token_only and "argmax_rows" in self._inputs
        self.sampling.bind(request)
        self._tables.bind(request)

    def _fill_tokens(self, row: Array, count: Array, start: Array, offset: Array, total: int) -> None:
        token_row = np.repeat(row, count)
        position = np.arange(total) + np.repeat(start - offset, count)
        self._inputs["positions"][:total] = position
        self._inputs["ids"][:total] = self._tokens[token_row, position]
        if "lengths" in self._inputs:
            self._inputs["lengths"][:total] = np.maximum(self._prompt[token_row], position + 1)
        self._tables.fill_slots(token_row, position)

    def _fill_rows(self, row: Array, token: Array, sampled: list[Request]) -> tuple[list[Request], int]:
        """The requests in the order of their tokens, and how many of them, the last ones, have no logits."""
        argmax = self._argmax[row]
        without = int(argmax.sum())
        total = len(sampled) - without
        if without:
            order = np.argsort(argmax, kind="stable")
            row, token = row[order], token[order]
            sampled = [sampled[i] for i in order.tolist()]
            self._inputs["argmax_rows"][:without] = token[total:]
        self._inputs["rows"][:total] = token[:total]
        self.sampling.fill(row[:total], sampled[:total])
        return sampled, without
