"""Extra logit rows of a step, for log-probabilities of prompt tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from inferir.ir.contract.symbols import StepCounts
from inferir.runtime.batch.sampling_rows import leave_rows
from inferir.runtime.executor.base import StepOutputs
from inferir.runtime.requests.request import Request, Scheduled
from inferir.runtime.sampling.token_logprobs import token_logprobs


@dataclass(frozen=True)
class _Score:
    """Logits in row `row` say how likely the token at `position` of `request` is."""

    request: Request
    position: int
    row: int


class PromptScores:
    """Rows behind those of the sampled tokens; what is drawn in them is not used."""

    def __init__(self) -> None:
        self._scores: list[_Score] = []

    def prepare(
        self, scheduled: Sequence[Scheduled], counts: StepCounts, inputs: Mapping[str, npt.NDArray[Any]]
    ) -> StepCounts:
        """Ask for the rows that `scheduled` wants beyond the sampled ones; the counts with them."""
        self._scores.clear()
        if all(s.request.prompt_logprobs is None for s in scheduled):
            return counts
        offset, row = 0, counts.rows
        for s in scheduled:
            for position in s.request.unscored(s.tokens):
                inputs["rows"][row] = offset + position - s.request.computed
                self._scores.append(_Score(s.request, position + 1, row))
                row += 1
            offset += s.tokens
        leave_rows(inputs, counts.rows, row)
        return counts._replace(rows=row)

    def take(self, outputs: StepOutputs) -> None:
        """Append what the step's rows say to the requests."""
        for score in self._scores:
            request = score.request
            if request.prompt_logprobs is not None:
                top = request.params.prompt_logprobs or 0
                token = request.prompt[score.position]
                request.prompt_logprobs.append(token_logprobs(outputs.row_logits(score.row)[0], token, top))
