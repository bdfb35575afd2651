"""Steps that bring a request several tokens: same answers, in fewer updates."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from engine_requests import add_request

from inferir.runtime.engine.engine import Engine
from inferir.runtime.requests.request import Request, Update
from inferir.runtime.sampling.sampling_params import SamplingParams

MakeEngine = Callable[..., Engine]
Reference = Callable[..., list[int]]
PROMPTS = ([1, 2, 3], [9], [4] * 11)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.9, "seed": 5, "logprobs": 0},
)


def serve(engine: Engine, width: int, **params: Any) -> list[tuple[Request, list[Update]]]:
    """Requests of every kind, served by a device that brings `width` tokens a row, and their updates."""
    device: Any = engine.executor
    device.width = width
    requests = [
        add_request(engine, prompt, SamplingParams(**({"max_tokens": 17} | kind | params)))
        for prompt, kind in zip(PROMPTS, KINDS, strict=True)
    ]
    updates: dict[str, list[Update]] = {r.id: [] for r in requests}
    while engine.has_unfinished:
        for update in engine.step():
            updates[update.request.id].append(update)
    assert engine.kv.pool.num_used == 0
    return [(r, updates[r.id]) for r in requests]


@pytest.mark.parametrize("width", [2, 3, 5])
def test_answers_do_not_depend_on_how_many_tokens_a_step_brings(
    make_engine: MakeEngine, reference: Reference, width: int
) -> None:
    wide = serve(make_engine(), width)
    for (request, updates), (single, one_by_one) in zip(wide, serve(make_engine(), 1), strict=True):
        assert request.outputs == single.outputs == reference(request.prompt, request.params, 17)
        assert [t for u in updates for t in u.tokens] == request.outputs
        assert [s for u in updates for s in u.logprobs] == [s for u in one_by_one for s in u.logprobs]
        assert [len(u.tokens) for u in updates] == [width] * (17 // width) + [17 % width] * (17 % width > 0)
        assert updates[-1].finish_reason == "length"
        assert len(one_by_one) == 17


def test_what_follows_a_token_that_ends_a_request_is_dropped(make_engine: MakeEngine, reference: Reference) -> None:
    tokens = reference(PROMPTS[0], SamplingParams(temperature=0.0), 17)
    end = tokens[7]
    cut = tokens.index(end) + 1
    request, updates = serve(make_engine(eos=[end]), 5)[0]
    assert request.outputs == tokens[:cut]
    assert (updates[-1].finish_reason, updates[-1].tokens[-1]) == ("stop", end)
    late, _ = serve(make_engine(eos=[end]), 5, min_tokens=cut)[0]
    assert late.outputs[: cut + 1] == tokens[: cut + 1]


def test_a_row_may_bring_fewer_tokens_than_others(make_engine: MakeEngine, reference: Reference) -> None:
    """What is below 0 behind a token says that there is no more, and is no failure."""
    engine = make_engine()
    device: Any = engine.executor
    wait = device.wait

    def short(step: Any) -> Any:
        outputs = wait(step)
        outputs.tokens[1::2, 1:] = -1
        return outputs

    device.wait = short
    for request, updates in serve(engine, 3):
        assert request.outputs == reference(request.prompt, request.params, 17)
        assert updates[-1].finish_reason == "length"


class OneToken:
    """A grammar that takes one token and no second."""

    def __init__(self) -> None:
        self.taken = 0

    def new_state(self, extra_stops: Any = ()) -> OneToken:
        return OneToken()

    def fill(self, bitmask: Any) -> None: ...

    def accept(self, token: int) -> bool:
        self.taken += 1
        return self.taken == 1

    def end(self) -> bool:
        return False

    finished = False


def test_a_token_that_cannot_follow_ends_its_request_behind_those_before(make_engine: MakeEngine) -> None:
    engine = make_engine()
    device: Any = engine.executor
    device.width = 3
    grammar: Future[Any] = Future()
    grammar.set_result(OneToken())
    request = add_request(engine, [1], SamplingParams(temperature=0.0, max_tokens=9), grammar=grammar)
    (update,) = engine.step()
    assert (len(update.tokens), update.finish_reason) == (1, "error")
    assert list(update.tokens) == request.outputs
    assert request.error is not None
    assert "does not fit its grammar" in request.error
