"""The loop around an engine: who gets which updates, and what becomes of requests that are stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inferir.ir.errors import EngineError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_loop import EngineLoop
from inferir.runtime.requests.request import Request, Update
from inferir.runtime.sampling.sampling_params import SamplingParams

MakeEngine = Callable[..., Engine]
Reference = Callable[..., list[int]]
PARAMS = SamplingParams(temperature=0.0, max_tokens=5)


def requests(engine: Engine, *prompts: list[int]) -> list[Request]:
    return [engine.requests.make(p, PARAMS)[0] for p in prompts]


def test_each_taker_gets_the_updates_of_its_requests(make_engine: MakeEngine, reference: Reference) -> None:
    engine = make_engine()
    loop = EngineLoop(engine)
    first, second, third = requests(engine, [1], [2, 3], [4])
    mine: list[Update] = []
    others: list[Update] = []
    loop.add({first: mine.append, third: mine.append})
    loop.turn()
    loop.add({second: others.append})
    while engine.has_unfinished:
        loop.turn()
    assert {u.request for u in mine} == {first, third}
    assert [t for u in mine if u.request is first for t in u.tokens] == reference([1], PARAMS, 5)
    assert [t for u in others for t in u.tokens] == reference([2, 3], PARAMS, 5)
    assert others[-1].finish_reason == "length"


def test_a_stopped_request_brings_its_taker_nothing_more(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loop = EngineLoop(engine)
    stopped, other = requests(engine, [1], [2])
    got: list[Update] = []
    loop.add({stopped: got.append, other: lambda update: None})
    loop.turn()
    last = loop.abort(stopped.id)
    assert last is not None
    assert (last.finish_reason, len(got)) == ("abort", 1)
    assert loop.abort(stopped.id) is None
    while engine.has_unfinished:
        loop.turn()
    assert len(got) == 1
    assert not loop._takers


def test_requests_are_queued_all_or_none(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loop = EngineLoop(engine)
    (first,) = requests(engine, [1])
    got: list[Update] = []
    loop.add({first: got.append})
    again, fresh = engine.requests.make([1], PARAMS, first.id)[0], requests(engine, [2])[0]
    with pytest.raises(EngineError, match="already being served"):
        loop.add({fresh: got.append, again: got.append})
    while engine.has_unfinished:
        loop.turn()
    assert {u.request for u in got} == {first}


def test_closing_ends_what_runs(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loop = EngineLoop(engine)
    (request,) = requests(engine, [1])
    loop.add({request: lambda update: None})
    loop.close()
    assert request.finish_reason == "abort"
    assert engine.kv.pool.num_used == 0
