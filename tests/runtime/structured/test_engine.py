"""Grammars inside the engine: requests wait for them, keep to them, and fail alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request

from inferir.ir.errors import EngineError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.executor.base import Step, StepOutputs
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.structured import Grammar, GrammarCompiler, GrammarState, StructuredSpec
from inferir.runtime.structured.grammar import GrammarLimitError
from inferir.runtime.structured.vocabulary import Vocabulary

MakeEngine = Callable[..., Engine]
VOCAB = 97  # of the fake device: here token i is the character 32 + i, and the last one ends a text
EOS = VOCAB - 1
TOKENS = [bytes([32 + i]) for i in range(VOCAB - 2)] + [b"", b""]


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(Vocabulary(TOKENS, [EOS]))
    yield made
    made.close()


@pytest.fixture
def masked_engine(make_engine: MakeEngine) -> MakeEngine:
    """Engines whose device takes the most likely token that the mask of its row allows."""

    def make(**options: Any) -> Engine:
        engine = make_engine(eos=[EOS], max_seqs=4, max_tokens=16, **options)
        device: Any = engine.executor
        plain = device.wait

        def run(step: Step) -> StepOutputs:
            counts = step.counts
            outputs = plain(step)
            tokens = outputs.tokens.copy()
            for row in range(counts.rows):
                if device.inputs["masked"][row]:
                    bits = np.unpackbits(device.inputs["bitmask"][row].view(np.uint8), bitorder="little")[:VOCAB]
                    tokens[row] = np.where(bits, outputs.logits[row], -np.inf).argmax()
            return StepOutputs(tokens, outputs.logits, outputs.argmax)

        device.wait = run
        return engine

    return make


@pytest.fixture
def engine(masked_engine: MakeEngine) -> Engine:
    return masked_engine()


def text(tokens: list[int]) -> str:
    return b"".join(TOKENS[t] for t in tokens).decode()


def drain(engine: Engine) -> None:
    deadline = time.monotonic() + 30
    while engine.has_unfinished:
        engine.step()
        assert time.monotonic() < deadline


def test_constrained_and_free_requests_in_one_batch(engine: Engine, grammars: GrammarCompiler) -> None:
    free = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    alone = add_request(engine, [1, 2, 3], free, "alone")
    drain(engine)
    spec = StructuredSpec("choice", ["alpha", "beta gamma", "x"])
    params = SamplingParams(temperature=0, max_tokens=30)
    requests = [add_request(engine, [5, i], params, f"g{i}", grammar=grammars.compile_async(spec)) for i in range(6)]
    beside = add_request(engine, [1, 2, 3], free, "beside")
    drain(engine)
    assert beside.outputs == alone.outputs
    for request in requests:
        assert text(request.outputs) in ("alpha", "beta gamma", "x")
        assert request.outputs[-1] == EOS
        assert (request.finish_reason, request.stop_reason) == ("stop", None)
    assert engine.kv.pool.num_used == 0


def test_a_grammar_survives_preemption(masked_engine: MakeEngine, grammars: GrammarCompiler) -> None:
    pattern = "[a-f]{20}"
    grammar = grammars.compile_async(StructuredSpec("regex", pattern))
    params = SamplingParams(temperature=0, max_tokens=30)
    small = masked_engine(num_blocks=20)
    made = [add_request(small, [7, i] * 5, params, f"r{i}", grammar=grammar) for i in range(4)]
    drain(small)
    assert small.scheduler.num_preemptions > 0
    for request in made:
        assert len(text(request.outputs)) == 20
        assert set(text(request.outputs)) <= set("abcdef")


def test_a_bad_grammar_fails_its_request_only(engine: Engine, grammars: GrammarCompiler) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    bad = add_request(engine, [1], params, "bad", grammar=grammars.compile_async(StructuredSpec("regex", "(")))
    good = add_request(engine, [1], params, "good")
    drain(engine)
    assert bad.finish_reason == "error"
    assert "unclosed group" in str(bad.error)
    assert good.finish_reason == "length"


def test_others_run_while_a_grammar_is_compiled(engine: Engine) -> None:
    pending: Future[Grammar] = Future()
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    waiting = add_request(engine, [1], params, "waiting", grammar=pending)
    other = add_request(engine, [1], params, "other")
    for _ in range(6):
        engine.step()
    assert other.finish_reason == "length"
    assert waiting.outputs == []
    assert engine.abort("waiting") is not None
    assert not engine.has_unfinished


def test_max_tokens_cuts_a_text_short(engine: Engine, grammars: GrammarCompiler) -> None:
    grammar = grammars.compile_async(StructuredSpec("regex", "[a-z]{10}"))
    request = add_request(engine, [1], SamplingParams(temperature=0, max_tokens=3), "r", grammar=grammar)
    drain(engine)
    assert request.finish_reason == "length"
    assert len(text(request.outputs)) == 3


@pytest.mark.parametrize("grammar", [True, False])
def test_logits_that_are_not_numbers_are_no_fault_of_the_request(
    engine: Engine, grammars: GrammarCompiler, grammar: bool
) -> None:
    device: Any = engine.executor
    plain = device.wait

    def run(step: Step) -> StepOutputs:
        outputs = plain(step)
        return StepOutputs(np.full_like(outputs.tokens, -1), np.full_like(outputs.logits, np.nan), outputs.argmax)

    device.wait = run
    params = SamplingParams(temperature=1, max_tokens=5)
    spec = grammars.compile_async(StructuredSpec("regex", "a*")) if grammar else None
    request = add_request(engine, [1], params, "r", grammar=spec)
    drain(engine)
    assert request.finish_reason == "error"
    assert "not numbers" in str(request.error)
    assert request.internal


def test_a_limit_exceeded_while_answering_ends_that_request_by_its_own_fault(
    engine: Engine, grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = grammars.compile_async(StructuredSpec("regex", "[a-f]{20}"))
    grammar.exception()
    plain, filled = GrammarState.fill, []

    def fill(state: GrammarState, row: Any) -> bool:
        filled.append(1)
        if len(filled) == 4:
            raise GrammarLimitError("structured_outputs: following it exceeds a limit", "structured_outputs")
        return plain(state, row)

    monkeypatch.setattr(GrammarState, "fill", fill)
    deep = add_request(engine, [1], SamplingParams(temperature=0, max_tokens=30), "deep", grammar=grammar)
    beside = add_request(engine, [1, 2], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), "beside")
    drain(engine)
    assert (beside.finish_reason, len(deep.outputs)) == ("length", 3)
    assert (deep.finish_reason, deep.internal) == ("error", False)
    assert "exceeds a limit" in str(deep.error)


def test_a_core_that_fails_while_answering_is_no_fault_of_the_request(
    engine: Engine, grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(state: GrammarState, row: Any) -> bool:
        raise EngineError("following a grammar failed: panic")

    monkeypatch.setattr(GrammarState, "fill", fail)
    grammar = grammars.compile_async(StructuredSpec("choice", ["a"]))
    grammar.exception()
    request = add_request(engine, [1], SamplingParams(max_tokens=5), "r", grammar=grammar)
    drain(engine)
    assert (request.finish_reason, request.internal) == ("error", True)
