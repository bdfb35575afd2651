"""Requests that want nothing of their logits but the most likely token get arg-max rows, behind the logit rows."""

from collections.abc import Callable
from typing import Any

import pytest
from engine_requests import add_request

from inferir.runtime.engine.engine import Engine
from inferir.runtime.sampling.sampling_params import SamplingParams

MakeEngine = Callable[..., Engine]


def drain(engine: Engine) -> list[tuple[int, int]]:
    """(logit rows, arg-max rows) of each step."""
    executor: Any = engine.executor
    while engine.has_unfinished:
        engine.step()
    return [(counts.rows, counts.argmax) for _, counts in executor.steps]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7, "seed": 3},
        {"logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": [1, 2, 3]},
        {"repetition_penalty": 1.3},
    ],
)
def test_who_needs_logits(make_engine: MakeEngine, changes: dict[str, Any]) -> None:
    engine = make_engine()
    add_request(engine, [1, 2], SamplingParams(**{"temperature": 0.0, "max_tokens": 2, **changes}))
    assert drain(engine) == [(1, 0), (1, 0)]


def test_others_go_without(make_engine: MakeEngine, reference: Callable[..., list[int]]) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=3)
    request = add_request(engine, [1, 2], params)
    assert drain(engine) == [(0, 1)] * 3
    assert request.outputs == reference([1, 2], params, 3)


def test_mixed_steps_give_every_request_its_own_token(make_engine: MakeEngine, reference: Callable[..., Any]) -> None:
    """Greedy and random requests alternate, join and leave; prompts are chunked and some have their prompt scored."""
    engine = make_engine(max_tokens=11)
    requests = []
    for i in range(9):
        hot = {"temperature": 0.8, "seed": i} if i % 2 else {"temperature": 0.0}
        scored = {"prompt_logprobs": 0} if i in (2, 5) else {}
        params = SamplingParams(**hot, **scored, max_tokens=3 + i)
        prompt = list(range(1 + i, 4 + 2 * i))
        requests.append((add_request(engine, prompt, params), prompt, params))
        engine.step()
    rows = drain(engine)
    for request, prompt, params in requests:
        assert request.outputs == reference(prompt, params, params.max_tokens)
    assert any(a and b for a, b in rows)


def test_artifacts_without_argmax_rows_have_logits_for_all(make_engine: MakeEngine) -> None:
    engine = make_engine()
    del engine.executor.inputs["argmax_rows"]  # type: ignore[attr-defined]
    add_request(engine, [1, 2], SamplingParams(temperature=0.0, max_tokens=2))
    assert drain(engine) == [(1, 0), (1, 0)]
