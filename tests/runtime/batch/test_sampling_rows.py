"""Rows that are not sampled, and the rows that score a prompt."""

from __future__ import annotations

import numpy as np

from inferir.ir.contract.symbols import StepCounts
from inferir.runtime.batch.sampling_rows import PromptScores, leave_rows
from inferir.runtime.executor.base import StepOutputs
from inferir.runtime.requests.request import Request, Scheduled
from inferir.runtime.sampling.sampling_params import SamplingParams

NAMES = ("temperature", "top_k", "top_p", "min_p", "seed", "counter", "masked", "edit_begin", "edit_count")


def inputs() -> dict[str, np.ndarray]:
    return {"rows": np.full(8, -1, np.int32), **{name: np.full(8, 7.0, np.float32) for name in NAMES}}


def request(prompt: list[int], computed: int, scored: bool) -> Request:
    params = SamplingParams(prompt_logprobs=1 if scored else None)
    made = Request(id="r", prompt=prompt, params=params, max_total=9, seed=0, blocks=(), computed=computed)
    made.prompt_logprobs = [None] * (computed + 1) if scored else None
    return made


def test_rows_of_which_only_logits_matter() -> None:
    given = inputs()
    leave_rows(given, 2, 4)
    assert {name: given[name].tolist() for name in ("temperature", "top_p", "masked", "edit_count")} == {
        "temperature": [7, 7, 0, 0, 7, 7, 7, 7],
        "top_p": [7, 7, 1, 1, 7, 7, 7, 7],
        "masked": [7, 7, 0, 0, 7, 7, 7, 7],
        "edit_count": [7, 7, 0, 0, 7, 7, 7, 7],
    }


def test_scores_of_prompts() -> None:
    """A token's score stands in the row of the token before it, behind the rows of the sampled tokens."""
    given, scores = inputs(), PromptScores()
    plain, scored = request([1, 2, 3], 0, False), request([4, 0, 2, 1], 1, True)
    counts = StepCounts(6, 2, 2, 0)
    found = scores.prepare([Scheduled(plain, 3), Scheduled(scored, 3)], counts, given)
    assert found == counts._replace(rows=4)
    assert given["rows"].tolist() == [-1, -1, 3, 4, -1, -1, -1, -1]  # positions 1 and 2 of the second
    logits = np.zeros((4, 5), np.float32)
    logits[2, 2] = logits[3, 3] = 9
    scores.take(StepOutputs(np.zeros((4, 1), np.int32), logits))
    assert scored.prompt_logprobs is not None
    first, second = scored.prompt_logprobs[2:]
    assert first is not None
    assert second is not None
    assert (first.token, first.rank, first.top[0][0]) == (2, 1, 2)
    assert (second.token, second.rank, second.top[0][0]) == (1, 2, 3)
    assert plain.prompt_logprobs is None


def test_steps_without_scores_are_left_alone() -> None:
    given, scores = inputs(), PromptScores()
    counts = StepCounts(3, 1, 1, 0)
    assert scores.prepare([Scheduled(request([1, 2, 3], 0, False), 3)], counts, given) is counts
    assert (given["rows"] == -1).all()
