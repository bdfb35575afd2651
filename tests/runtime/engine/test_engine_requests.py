"""What the engine does for single requests: log-probabilities, several answers, grammars, errors, times, priorities."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request, add_requests

from inferir.ir.errors import EngineError, QueueFullError, RequestError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.executor.base import StepOutputs
from inferir.runtime.requests.request import Request, Update
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.sampling.token_logprobs import token_logprobs

MakeEngine = Callable[..., Engine]
Reference = Callable[..., list[int]]
VOCAB = 97


def drain(engine: Engine) -> list[Update]:
    updates = []
    while engine.has_unfinished:
        updates += engine.step()
    assert engine.kv.pool.num_used == 0
    return updates


def raw_logits(make_engine: MakeEngine, tokens: list[int], windows: tuple[int, ...] = (0,)) -> np.ndarray:
    """Logits after every token, from an engine that does nothing else."""
    from inferir.runtime.probe import sequence_logits

    return sequence_logits(make_engine(windows=windows, max_seqs=1, max_tokens=64), [tokens])[0]


def log_softmax(row: np.ndarray) -> np.ndarray:
    wide = row.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def test_ranks_and_order_of_equal_logits() -> None:
    row = np.array([0.0, 2.0, 1.0, 2.0, -np.inf], np.float32)
    found = token_logprobs(row, 3, 3)
    expected = log_softmax(row)
    assert (found.token, found.rank, [t for t, _ in found.top]) == (3, 1, [1, 3, 2])
    assert [p for _, p in found.top] == expected[[1, 3, 2]].tolist()
    assert token_logprobs(row, 2, 0) == type(found)(2, float(expected[2]), 3, ())
    assert [t for t, _ in token_logprobs(row, 0, -1).top] == [1, 3, 2, 0, 4]
    assert token_logprobs(row, 4, 9).logprob == -np.inf
    assert len(token_logprobs(row, 4, 9).top) == 5


def test_logprobs_of_answers(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = [3, 1, 4, 1, 5]
    request = add_request(engine, prompt, SamplingParams(temperature=0.9, seed=1, max_tokens=7, logprobs=4))
    other = add_request(engine, [1, 2], SamplingParams(temperature=0.0, max_tokens=7))
    updates = drain(engine)
    rows = raw_logits(make_engine, prompt + request.outputs[:-1])[len(prompt) - 1 :]
    got = [found for u in updates if u.request is request for found in u.logprobs]
    for row, token, found in zip(rows, request.outputs, got, strict=True):
        assert found == token_logprobs(row, token, 4)
        assert found.top[0][0] == int(row.argmax())
    assert not any(u.logprobs for u in updates if u.request is other)


@pytest.mark.parametrize("length", [1, 2, 4, 8, 9, 23])
@pytest.mark.parametrize("rows", [3, 8])
def test_logprobs_of_prompts_whatever_the_row_limit(make_engine: MakeEngine, length: int, rows: int) -> None:
    engine = make_engine(max_seqs=3, max_rows=rows)
    prompt = [(7 * i + 3) % VOCAB for i in range(length)]
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2, logprobs=1)
    beside = add_request(engine, [5] * 11, SamplingParams(temperature=0.0, max_tokens=9))
    expected = raw_logits(make_engine, prompt)
    for _ in range(2):  # the second time the prompt is cached, and is computed all the same
        request = add_request(engine, prompt, params)
        drain(engine)
        assert request.cached_tokens == 0
        assert request.prompt_logprobs == [
            None,
            *(token_logprobs(expected[i], prompt[i + 1], 2) for i in range(length - 1)),
        ]
        assert request.outputs[0] == int(expected[-1].argmax())
    assert max(c.rows for _, c in engine.executor.steps) <= rows
    alone = make_engine()
    same = add_request(alone, [5] * 11, beside.params)
    drain(alone)
    assert beside.outputs == same.outputs


def test_prompt_logprobs_survive_preemption(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=16, max_seqs=4, max_tokens=12)
    params = SamplingParams(temperature=0.0, max_tokens=25, prompt_logprobs=0)
    requests = [add_request(engine, [i] * 15, params) for i in range(4)]
    drain(engine)
    assert engine.scheduler.num_preemptions > 0
    for i, request in enumerate(requests):
        rows = raw_logits(make_engine, [i] * 15)
        assert request.prompt_logprobs == [None, *(token_logprobs(r, i, 0) for r in rows[:-1])]


def test_several_answers_share_the_prompt_and_differ_by_seed(make_engine: MakeEngine) -> None:
    prompt = list(range(20))
    params = SamplingParams(n=3, seed=5, temperature=0.9, max_tokens=8)
    engine = make_engine(max_tokens=64)
    group = add_requests(engine, prompt, params, "r")
    drain(engine)
    assert [r.id for r in group] == ["r-0", "r-1", "r-2"]
    assert [r.cached_tokens for r in group] == [0, 16, 16]
    assert len({tuple(r.outputs) for r in group}) == 3
    assert group[0].seed == 5
    for request in group:
        alone = make_engine(prefix_caching=False)
        same = add_request(alone, prompt, SamplingParams(seed=request.seed, temperature=0.9, max_tokens=8))
        drain(alone)
        assert request.outputs == same.outputs
    again = make_engine(prefix_caching=False)
    repeat = add_requests(again, prompt, params)
    drain(again)
    assert [r.outputs for r in repeat] == [r.outputs for r in group]


def test_answers_without_a_seed_differ(make_engine: MakeEngine) -> None:
    engine = make_engine()
    group = add_requests(engine, [1, 2], SamplingParams(n=4, max_tokens=12))
    drain(engine)
    assert len({tuple(r.outputs) for r in group}) == 4


def test_an_aborted_first_answer_does_not_hold_up_the_others(make_engine: MakeEngine) -> None:
    engine = make_engine()
    group = add_requests(engine, list(range(30)), SamplingParams(n=3, temperature=0.0, max_tokens=4))
    engine.step()
    engine.abort(group[0].id)
    engine.abort(group[2].id)  # it waits for the first
    drain(engine)
    assert [r.finish_reason for r in group] == ["abort", "length", "abort"]


def test_a_group_is_queued_whole_or_not_at_all(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=2, max_waiting=1)
    params = SamplingParams(max_tokens=2)
    with pytest.raises(QueueFullError):
        add_requests(engine, [1], SamplingParams(n=4, max_tokens=2))
    assert not engine.has_unfinished
    add_request(engine, [1], params, "a-1")
    with pytest.raises(EngineError, match="'a-1'"):
        add_requests(engine, [1], SamplingParams(n=2, max_tokens=2), "a")
    assert [r.id for r in engine.scheduler.requests()] == ["a-1"]


def broken_rows(engine: Engine, prompt: list[int], token: int = -1) -> None:
    """Let the device draw `token` for requests with this prompt."""
    run, prepare = engine.executor.wait, engine.batch.prepare
    sampled: list[Request] = []

    def watched(*arguments: Any) -> Any:
        step = prepare(*arguments)
        sampled[:] = step.sampled
        return step

    def bad(*arguments: Any) -> StepOutputs:
        outputs = run(*arguments)
        for row, request in enumerate(sampled):
            if request.prompt == prompt:
                outputs.tokens[row] = token
        return outputs

    engine.batch.prepare = watched  # type: ignore[method-assign]
    engine.executor.wait = bad  # type: ignore[method-assign]


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_row_without_a_token_ends_its_request_only(make_engine: MakeEngine, reference: Reference, token: int) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=1)
    good, bad, late = (add_request(engine, p, params) for p in ([1, 2], [9, 9], [3]))
    broken_rows(engine, [9, 9], token)
    updates = drain(engine)
    assert good.outputs == reference([1, 2], params, 5)
    assert late.outputs == reference([3], params, 5)
    assert (bad.outputs, bad.finish_reason) == ([], "error")
    assert bad.error is not None
    assert "no token can follow" in bad.error
    assert [(u.tokens, u.finish_reason) for u in updates if u.request is bad] == [((), "error")]
    assert engine.stats().finished == {"length": 2, "error": 1}


class FakeGrammar:
    """Allows 10, 20, 30, … and ends after `count` tokens."""

    def __init__(self, count: int, accepts: int = 100) -> None:
        self.count = count
        self.accepts = accepts
        self.states: list[Any] = []

    def new_state(self, extra_stops: Any = ()) -> Any:
        grammar = self

        class State:
            taken = 0

            def fill(self, bitmask: np.ndarray) -> None:
                bitmask[:] = 0
                for token in range(10, VOCAB, 10):
                    bitmask.view(np.uint32)[token // 32] |= np.uint32(1 << (token % 32))

            def accept(self, token: int) -> bool:
                self.taken += 1
                return self.taken <= grammar.accepts

            @property
            def finished(self) -> bool:
                return self.taken >= grammar.count

        self.states.append(State())
        return self.states[-1]


def test_a_request_waits_for_its_grammar_and_follows_it(make_engine: MakeEngine, reference: Reference) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=6)
    future: Future[Any] = Future()
    guided = add_request(engine, [1, 2], params, grammar=future)
    assert engine.step() == []
    plain = add_request(engine, [1, 2], params)
    while plain.finish_reason is None:
        engine.step()
    assert plain.outputs == reference([1, 2], params, 6)
    assert guided.outputs == []
    assert engine.stats().waiting == 1
    grammar = FakeGrammar(3)
    future.set_result(grammar)
    masks: list[int] = []
    run = engine.executor.wait

    def watch(*arguments: Any) -> StepOutputs:
        masks.append(int(engine.executor.inputs["masked"][0]))
        return run(*arguments)

    engine.executor.wait = watch  # type: ignore[method-assign]
    drain(engine)
    assert (len(guided.outputs), guided.finish_reason) == (3, "stop")
    assert masks == [1, 1, 1]
    assert grammar.states[0].taken == 3


def test_grammar_failures_end_one_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=6)
    failed: Future[Any] = Future()
    failed.set_exception(RequestError("the schema is too deep", "response_format"))
    refusing: Future[Any] = Future()
    refusing.set_result(FakeGrammar(9, accepts=2))
    one = add_request(engine, [1], params, grammar=failed)
    two = add_request(engine, [1], params, grammar=refusing)
    three = add_request(engine, [1], params)
    pending: Future[Any] = Future()
    four = add_request(engine, [1], params, "four", grammar=pending)
    engine.abort("four")
    drain(engine)
    assert [r.finish_reason for r in (one, two, three, four)] == ["error", "error", "length", "abort"]
    assert len(two.outputs) == 2
    assert one.error is not None
    assert "too deep" in one.error


@pytest.mark.parametrize("method", ["fill", "accept"])
def test_a_grammar_that_raises_ends_its_request_only(
    make_engine: MakeEngine, reference: Reference, method: str
) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=5)
    future: Future[Any] = Future()
    future.set_result(FakeGrammar(9))
    bad, good = add_request(engine, [1], params, grammar=future), add_request(engine, [4, 5], params)
    engine.step()
    assert len(bad.outputs) == 1

    def broken(*_: object) -> bool:
        raise ValueError("the matcher is broken")

    setattr(bad.matcher, method, broken)
    drain(engine)
    assert (bad.finish_reason, len(bad.outputs)) == ("error", 1)
    assert bad.error is not None
    assert "the matcher is broken" in bad.error
    assert good.outputs == reference([4, 5], params, 5)


def test_min_tokens_come_before_any_end(make_engine: MakeEngine, reference: Reference) -> None:
    prompt = [3, 1, 4]
    tokens = reference(prompt, SamplingParams(temperature=0.0), 10)
    engine = make_engine()
    request = add_request(
        engine, prompt, SamplingParams(temperature=0.0, max_tokens=10, min_tokens=4, stop_token_ids=[tokens[4]])
    )
    drain(engine)
    assert (request.outputs, request.finish_reason, request.stop_reason) == (tokens[:5], "stop", tokens[4])


def test_times_follow_one_another_and_stats_count(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=1)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    first, second = add_request(engine, [1] * 20, params), add_request(engine, [2, 3], params)
    empty = engine.stats()
    assert (empty.running, empty.waiting, empty.kv_usage, empty.steps) == (0, 2, 0.0, 0)
    engine.step()
    busy = engine.stats()
    assert (busy.running, busy.waiting, busy.computed_tokens) == (1, 1, 16)
    assert busy.kv_usage == busy.kv_blocks_used / busy.kv_blocks > 0
    assert second.timing.queue is None
    drain(engine)
    for request in (first, second):
        t = request.timing
        assert t.scheduled is not None
        assert t.first_token is not None
        assert t.last_token is not None
        assert t.finished is not None
        assert t.arrival <= t.scheduled <= t.first_token <= t.last_token <= t.finished
        parts = (t.queue, t.prefill, t.decode)
        assert t.e2e is not None
        assert sum(p for p in parts if p is not None) <= t.e2e + 1e-9
    assert first.timing.finished is not None
    assert second.timing.scheduled is not None
    assert second.timing.scheduled >= first.timing.finished
    stats = engine.stats()
    assert (stats.generated_tokens, stats.finished) == (8, {"length": 2})
    assert stats.computed_tokens == 20 + 3 + 2 + 3


def test_a_high_priority_stream_starts_before_low_ones_end(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=2, policy="priority")
    params = SamplingParams(temperature=0.0, max_tokens=30)
    low = [add_request(engine, [i + 1] * 5, params, priority=10) for i in range(4)]
    for _ in range(3):
        engine.step()
    high = add_request(engine, [50], params, priority=0)
    while not high.outputs:
        engine.step()
    assert all(r.finish_reason is None for r in low)
    drain(engine)
    for request in [*low, high]:
        alone = make_engine(prefix_caching=False)
        same = add_request(alone, request.prompt, params)
        drain(alone)
        assert request.outputs == same.outputs
    bad: Any
    for bad in (1.5, True, "high", 2**70):
        with pytest.raises(RequestError) as e:
            add_request(engine, [1], params, priority=bad)
        assert e.value.field == "priority"


def test_thrashing_makes_progress_and_repeats_nothing(make_engine: MakeEngine) -> None:
    """Six long streams in a pool for about two, greedy, seeded, guided and with log-probabilities."""
    engine = make_engine(num_blocks=34, max_seqs=6, max_tokens=12, max_model_len=64)
    kinds = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 3}, {"temperature": 0.0, "logprobs": 2}]

    def add(to: Engine, index: int) -> Request:
        grammar: Future[Any] | None = None
        if index % 2:
            grammar = Future()
            grammar.set_result(FakeGrammar(1000))
        return add_request(to, [index] * 6, SamplingParams(max_tokens=50, **kinds[index % 3]), grammar=grammar)

    requests = [add(engine, i) for i in range(6)]
    streamed: dict[str, list[Any]] = {}
    for update in drain(engine):
        streamed.setdefault(update.request.id, []).append((update.tokens, update.logprobs))
    assert engine.scheduler.num_preemptions > 0
    for i, request in enumerate(requests):
        alone = make_engine()
        same = add(alone, i)
        assert streamed[request.id] == [(u.tokens, u.logprobs) for u in drain(alone)]
        assert len(same.outputs) == 50
    assert engine.stats().steps < 6 * 55 * 1.5


def test_a_full_queue_refuses_and_serves_what_it_took(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seqs=4, max_waiting=10)
    params = SamplingParams(temperature=0.0, max_tokens=3)
    taken: list[Request] = []
    refused = 0
    for i in range(200):
        try:
            taken.append(add_request(engine, [i % VOCAB, 1], params))
        except QueueFullError:
            refused += 1
    assert (len(taken), refused) == (14, 186)
    drain(engine)
    assert all(r.finish_reason == "length" for r in taken)
