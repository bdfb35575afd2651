"""The step input `lengths`, for models whose rotary frequencies depend on the length of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request

from inferir.runtime.engine.engine import Engine
from inferir.runtime.sampling.sampling_params import SamplingParams

PROMPTS = (5, 20, 1)


def served(engine: Engine, prompts: Sequence[int]) -> list[dict[int, int]]:
    """Serve prompts of these lengths; for each, the `lengths` that its positions were computed with."""
    inputs: Any = engine.executor.inputs
    inputs["lengths"] = np.full(engine.scheduler.options.max_tokens, -1, np.int32)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    requests = [add_request(engine, list(range(1, n + 1)), params) for n in prompts]
    seen: list[dict[int, int]] = [{} for _ in prompts]
    executor: Any = engine.executor
    run = executor.wait

    def observe(step: Any) -> Any:
        counts = step.counts
        owner = {r.row: i for i, r in enumerate(requests) if r.row >= 0}
        for row, first, count, position, _, _ in inputs["attn_items"][: counts.items].tolist():
            for i in range(count):
                seen[owner[row]][position + i] = int(inputs["lengths"][first + i])
        return run(step)

    executor.wait = observe
    while engine.has_unfinished:
        engine.step()
    return seen


@pytest.mark.parametrize("max_tokens", [4, 64])
def test_a_token_carries_its_own_sequence_length(max_tokens: int, make_engine: Callable[..., Engine]) -> None:
    """The prompt's length for the whole prompt, however it is chunked; position + 1 for generated tokens."""
    engine = make_engine(max_tokens=max_tokens, max_seqs=4)
    for n, seen in zip(PROMPTS, served(engine, PROMPTS), strict=True):
        assert seen == {p: max(n, p + 1) for p in range(n + 3)}
