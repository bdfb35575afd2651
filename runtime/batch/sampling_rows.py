"""The inputs of the draw: parameters per logit row, bitmask and edits, from what running requests want.

Parameters stay in arrays by request row, so a step copies them by index. Only requests with rules of their own cost
more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.logit_rules import RowEdits

Array = npt.NDArray[Any]
_COPIED = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32, "seed": np.int32}


class SamplingRows:
    """Sampling state of the requests in `max_seqs` rows."""

    def __init__(self, inputs: Mapping[str, Array], max_seqs: int) -> None:
        self._inputs = inputs
        self._values = {name: np.zeros(max_seqs, dtype) for name, dtype in _COPIED.items()}
        self._edits: dict[int, RowEdits] = {}
        self._allowed: dict[int, npt.NDArray[np.int32]] = {}
        self._sampled: Sequence[Request] = ()

    def bind(self, request: Request) -> None:
        """Take in the parameters of a request that got a row."""
        params, row = request.params, request.row
        self._values["temperature"][row] = 0.0 if params.greedy else params.temperature
        self._values["top_k"][row] = min(max(params.top_k, 0), 2**31 - 1)
        self._values["top_p"][row] = params.top_p
        self._values["min_p"][row] = params.min_p
        self._values["seed"][row] = request.seed
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
