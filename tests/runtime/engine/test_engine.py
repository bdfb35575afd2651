"""The engine over a fake device: tokens do not depend on batching, chunking, windows or preemption."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request

from inferir.ir.errors import EngineError, RequestError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.probe import sequence_logits
from inferir.runtime.sampling.sampling_params import SamplingParams

MakeEngine = Callable[..., Engine]
Reference = Callable[..., list[int]]
VOCAB = 97


def drain(engine: Engine) -> dict[str, list[int]]:
    """Run to the end; the tokens delivered per request, with their final lists checked against the stream."""
    streamed: dict[str, list[int]] = {}
    while engine.has_unfinished:
        for update in engine.step():
            streamed.setdefault(update.request.id, []).extend(update.tokens)
            if update.finish_reason:
                assert update.request.outputs == streamed[update.request.id]
    assert engine.kv.pool.num_used == 0
    return streamed


def prompts(count: int, seed: int = 0, longest: int = 30) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def params_for(index: int, tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0 if index % 2 else 0.8, seed=index, max_tokens=tokens)


@pytest.mark.parametrize("windows", [(0,), (5,), (1,), (0, 7), (-6,)])
@pytest.mark.parametrize("blocks", [64, 33, 22])
def test_every_request_gets_its_own_tokens(
    make_engine: MakeEngine, reference: Reference, windows: tuple[int, ...], blocks: int
) -> None:
    engine = make_engine(windows=windows, num_blocks=blocks * len(windows), max_tokens=9, max_seqs=6)
    for i, prompt in enumerate(prompts(12)):
        add_request(engine, prompt, params_for(i, 20), f"r{i}")
    got = drain(engine)
    for i, prompt in enumerate(prompts(12)):
        alone = make_engine(windows=windows, max_tokens=64)
        add_request(alone, prompt, params_for(i, 20), "alone")
        expected = drain(alone)["alone"]
        assert got[f"r{i}"] == expected
        if len(windows) == 1:
            assert expected == reference(prompt, params_for(i, 20), 20, windows[0])
    if windows == (0,) and blocks == 22:
        assert engine.scheduler.num_preemptions > 0


def test_decode_steps_are_marked(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for i, prompt in enumerate([[1, 2, 3], [4, 5]]):
        add_request(engine, prompt, SamplingParams(max_tokens=4, temperature=0), f"r{i}")
    drain(engine)
    steps = engine.executor.steps
    assert [(d.tokens, d.decode, c.argmax) for d, c in steps] == [
        (5, False, 2),
        (2, True, 2),
        (2, True, 2),
        (2, True, 2),
    ]


def test_chunked_prefill_asks_for_no_row_before_its_end(make_engine: MakeEngine) -> None:
    engine = make_engine(max_tokens=8, max_seqs=2)
    add_request(engine, list(range(20)), SamplingParams(max_tokens=1), "r")
    drain(engine)
    assert [(c.tokens, c.rows) for _, c in engine.executor.steps] == [(8, 0), (8, 0), (4, 1)]


def test_running_requests_go_on_during_a_long_prefill(make_engine: MakeEngine) -> None:
    engine = make_engine(max_tokens=8, max_seqs=4)
    first = add_request(engine, [1], SamplingParams(max_tokens=30), "short")
    engine.step()
    add_request(engine, list(range(40)), SamplingParams(max_tokens=2), "long")
    add_request(engine, [2], SamplingParams(max_tokens=30), "late")
    before = len(first.outputs)
    for _ in range(5):
        engine.step()
    assert len(first.outputs) == before + 5


def test_finish_reasons(make_engine: MakeEngine, reference: Reference) -> None:
    prompt = [3, 1, 4]
    greedy: dict[str, Any] = {"temperature": 0.0}
    tokens = reference(prompt, SamplingParams(**greedy), 10)
    end = tokens[4]
    cut = tokens.index(end) + 1

    def run(eos: Sequence[int] = (), **changes: Any) -> tuple[list[int], str | None, int | str | None]:
        engine = make_engine(eos=eos)
        request = add_request(engine, prompt, SamplingParams(**(greedy | {"max_tokens": 10} | changes)))
        drain(engine)
        return request.outputs, request.finish_reason, request.stop_reason

    assert run() == (tokens, "length", None)
    assert run(eos=[95, end]) == (tokens[:cut], "stop", None)
    assert run(eos=[end], ignore_eos=True) == (tokens, "length", None)
    assert run(stop_token_ids=[end]) == (tokens[:cut], "stop", end)
    assert run(stop_token_ids=[10**9]) == (tokens, "length", None)
    outputs, reason, _ = run(max_tokens=None)
    assert (len(outputs), reason) == (61, "length")
    assert len(run(max_tokens=10**6)[0]) == 61


def test_a_temperature_of_almost_nothing_is_greedy(make_engine: MakeEngine, reference: Reference) -> None:
    engine = make_engine()
    request = add_request(engine, [5, 6], SamplingParams(temperature=1e-38, max_tokens=5))
    drain(engine)
    assert request.outputs == reference([5, 6], SamplingParams(temperature=0.0), 5)
    assert engine.executor.inputs["temperature"][0] == 0


def test_seed_makes_draws_repeatable_and_none_does_not(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=4)
    for i, seed in enumerate([7, 7, None, None]):
        add_request(engine, [1, 2], SamplingParams(seed=seed, max_tokens=20), f"r{i}")
    got = drain(engine)
    assert got["r0"] == got["r1"]
    assert len({tuple(got[f"r{i}"]) for i in (0, 2, 3)}) == 3


def test_prompts_that_cannot_be_served(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=64)
    bad: list[Any] = [[], [-1], [VOCAB], [2**31], [2**70], [1.5], [[1, 2]], ["a"], [True]]
    for prompt in bad:
        with pytest.raises(RequestError) as e:
            add_request(engine, prompt, SamplingParams())
        assert e.value.field == "prompt"
    for length in (64, 65, 640):
        with pytest.raises(RequestError, match=f"{length} tokens.* 64"):
            add_request(engine, [1] * length, SamplingParams())
    request = add_request(engine, [1] * 63, SamplingParams(max_tokens=10**6))
    drain(engine)
    assert (len(request.outputs), request.finish_reason) == (1, "length")


def test_a_request_larger_than_the_pool_is_refused_at_once_and_others_go_on(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=6)  # 20 token slots
    with pytest.raises(RequestError, match=r"30 tokens.*holds 20 per request.*kv_cache_memory"):
        add_request(engine, [1] * 30, SamplingParams())
    request = add_request(engine, [1] * 10, SamplingParams(max_tokens=2000))
    other = add_request(engine, [2] * 10, SamplingParams(max_tokens=3))
    drain(engine)
    assert (len(request.outputs), request.finish_reason) == (10, "length")
    assert len(other.outputs) == 3


def test_abort_frees_everything(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=2)
    for i in range(4):
        add_request(engine, [i + 1] * 9, SamplingParams(max_tokens=50), f"r{i}")
    engine.step()
    running = engine.abort("r0")
    waiting = engine.abort("r3")
    assert running is not None
    assert waiting is not None
    assert running.finish_reason == waiting.finish_reason == "abort"
    assert engine.abort("r0") is None
    assert sorted(drain(engine)) == ["r1", "r2"]


def test_id_in_use(make_engine: MakeEngine) -> None:
    engine = make_engine()
    add_request(engine, [1], SamplingParams(), "a")
    with pytest.raises(EngineError, match="'a' is already"):
        add_request(engine, [1], SamplingParams(), "a")


def test_close_drops_requests_and_stops_the_executor(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = add_request(engine, [1], SamplingParams())
    engine.close()
    assert request.finish_reason == "abort"
    assert engine.executor.closed
    assert engine.kv.pool.num_used == 0


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_logits_of_every_position(make_engine: MakeEngine, chunk: int) -> None:
    engine = make_engine(max_seqs=3, max_tokens=16, max_rows=4)
    sequences = [[5, 6, 7, 8, 9, 10, 11], [1, 2], [3]]
    whole = sequence_logits(make_engine(max_seqs=1, max_rows=64), [sequences[0]])[0]
    rows = sequence_logits(engine, sequences, chunk)
    assert [r.shape for r in rows] == [(7, VOCAB), (2, VOCAB), (1, VOCAB)]
    np.testing.assert_array_equal(rows[0], whole)
    assert engine.kv.pool.num_used == 0
    request = add_request(engine, sequences[0], SamplingParams(temperature=0.0, max_tokens=1))
    drain(engine)
    assert request.outputs == [int(whole[-1].argmax())]


def test_logits_need_an_idle_engine(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=2)
    with pytest.raises(EngineError, match="chunk must be from 1 to 8"):
        sequence_logits(engine, [[1], [2]], 9)
    add_request(engine, [1], SamplingParams())
    with pytest.raises(EngineError, match="no request is being served"):
        sequence_logits(engine, [[1]])
