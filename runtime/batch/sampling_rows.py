"""The inputs of the draw: parameters per logit row, bitmask and edits, from what running requests want.

Parameters stay in arrays by request row, so a step copies them by index. Only requests with rules of their own cost
more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, Writer
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.graph.dtypes import DType
from inferir.runtime.executor.base import StepOutputs
from inferir.runtime.requests.request import Request, Scheduled
from inferir.runtime.sampling.logit_rules import RowEdits
from inferir.runtime.sampling.token_logprobs import token_logprobs

Array = npt.NDArray[Any]
_ROWS = tuple(i for i in SAMPLE_INPUTS if i.dims[0] == "R")
_KEPT = tuple(i for i in _ROWS if i.writer in (Writer.PARAMS, Writer.REQUEST))
_KINDS = {DType.F32: np.float32, DType.I32: np.int32}


def leave_rows(inputs: Mapping[str, Array], start: int, stop: int) -> None:
    """Have nothing done to logit rows `start` … `stop` - 1: only their logits matter."""
    for i in _ROWS:
        if i.neutral is not None:
            inputs[i.name][start:stop] = i.neutral


class SamplingRows:
    """Sampling state of the requests in `max_seqs` rows."""

    def __init__(self, inputs: Mapping[str, Array], max_seqs: int) -> None:
        self._inputs = inputs
        self._values = {i.name: np.zeros(max_seqs, _KINDS[i.dtype]) for i in _KEPT}
        self._edits: dict[int, RowEdits] = {}
        self._allowed: dict[int, npt.NDArray[np.int32]] = {}
        self._sampled: Sequence[Request] = ()

    def bind(self, request: Request) -> None:
        """Take in the parameters of a request that got a row."""
        params, row = request.params, request.row
        for i in _KEPT:
            value = getattr(params if i.writer is Writer.PARAMS else request, i.name)
            self._values[i.name][row] = min(value, 2**31 - 1) if i.dtype is DType.I32 else value
        if params.greedy:
            self._values["temperature"][row] = 0
        rules = request.rules
        if rules is not None and rules.edits:
            self._edits[row] = RowEdits(rules, request.prompt, request.outputs)
        if rules is not None and rules.allowed is not None:
            self._allowed[row] = rules.allowed

    @property
    def plain(self) -> bool:
        """Whether no bound request has edits or a mask of its own, which are written anew in every step."""
        return not self._edits and not self._allowed

    def append(self, row: int, token: int) -> None:
        if row in self._edits:
            self._edits[row].append(token)

    def release(self, row: int) -> None:
        self._edits.pop(row, None)
        self._allowed.pop(row, None)

    def fill(self, row: Array, sampled: Sequence[Request]) -> None:
        """Fill the inputs of the draw for logit rows 0 … len(sampled) - 1, which belong to request rows `row`."""
        total, inputs = len(sampled), self._inputs
        self._sampled = sampled
        for name, values in self._values.items():
            inputs[name][:total] = values[row]
        inputs["counter"][:total] = [len(r.outputs) for r in sampled]
        inputs["masked"][:total] = 0
        inputs["edit_count"][:total] = 0
        if self.plain:
            return
        start = 0
        for index, request in enumerate(sampled):
            if request.row in self._edits:
                count = self._edits[request.row].write(inputs, start)
                inputs["edit_begin"][index], inputs["edit_count"][index] = start, count
                start += count
            if request.row in self._allowed:
                self._mask(index, self._allowed[request.row])

    def constrain(self, index: int, fill: Callable[[Array], object]) -> None:
        """Let `fill` write the bitmask of logit row `index` of the step being prepared (bit i % 32 of word i // 32 is
        token i); ids that the request's own rules leave out stay out."""
        bits = self._inputs["bitmask"][index]
        fill(bits)
        self._inputs["masked"][index] = 1
        allowed = self._allowed.get(self._sampled[index].row)
        if allowed is not None:
            bits[: len(allowed)] &= allowed
            bits[len(allowed) :] = 0

    def _mask(self, index: int, allowed: npt.NDArray[np.int32]) -> None:
        bits = self._inputs["bitmask"][index]
        bits[: len(allowed)] = allowed
        bits[len(allowed) :] = 0
        self._inputs["masked"][index] = 1


class PromptScores:
    """Extra logit rows of a step, for log-probabilities of prompt tokens: behind those of the sampled tokens. What is
    drawn in them is not used.
    """

    def __init__(self) -> None:
        self._scores: list[tuple[Request, int, int]] = []  # a request, the position of a token, the row that scores it

    def prepare(self, scheduled: Sequence[Scheduled], counts: StepCounts, inputs: Mapping[str, Array]) -> StepCounts:
        """Ask for the rows that `scheduled` wants beyond the sampled ones; the counts with them."""
        self._scores.clear()
        if all(s.request.prompt_logprobs is None for s in scheduled):
            return counts
        offset, row = 0, counts.rows
        for s in scheduled:
            for position in s.request.unscored(s.tokens):
                inputs["rows"][row] = offset + position - s.request.computed
                self._scores.append((s.request, position + 1, row))
                row += 1
            offset += s.tokens
        leave_rows(inputs, counts.rows, row)
        return counts._replace(rows=row)

    def take(self, outputs: StepOutputs) -> None:
        """Append what the step's rows say to the requests."""
        for request, position, row in self._scores:
            if request.prompt_logprobs is not None:
                top = request.params.prompt_logprobs or 0
                scored = token_logprobs(outputs.row_logits(row)[0], request.prompt[position], top)
                request.prompt_logprobs.append(scored)
