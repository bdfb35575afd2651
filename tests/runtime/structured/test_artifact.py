"""Grammars over a compiled artifact of a tiny random model: its sampling kernel keeps to the masks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_requests import add_request

from inferir.runtime.build_engine import build_engine
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_options import EngineOptions
from inferir.runtime.executor.executors import check_target
from inferir.runtime.loader import load_artifact
from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.structured import GrammarCompiler, StructuredSpec

FINITE = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}, "c": {"type": "null"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
VALUES = ["在线", "Sjöfart", "😀", 'a"b\\c']


@pytest.fixture(scope="module")
def engine(tiny_artifact: Path) -> Iterator[Engine]:
    made = build_engine(load_artifact(tiny_artifact, check_target), EngineOptions(threads=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def grammars(engine: Engine) -> Iterator[GrammarCompiler]:
    assert engine.tokenizer is not None
    made = GrammarCompiler.of(engine.tokenizer, engine.limits.vocab_size, engine.limits.eos_token_ids)
    yield made
    made.close()


def run(engine: Engine, requests: list[Request]) -> list[str]:
    """Texts of requests, run together to their ends."""
    texts = {r.id: "" for r in requests}
    deadline = time.monotonic() + 60
    while engine.has_unfinished:
        for update in engine.step():
            texts[update.request.id] += update.text
        assert time.monotonic() < deadline
    return [texts[r.id] for r in requests]


@pytest.mark.parametrize("bias", [{}, {"\n": 100.0, " ": 100.0}], ids=["plain", "blanks"])
def test_a_finite_schema_ends(engine: Engine, grammars: GrammarCompiler, bias: dict[str, float]) -> None:
    assert engine.tokenizer is not None
    grammar = grammars.compile_async(StructuredSpec("json_schema", FINITE))
    ids: dict[str, float] = {str(engine.tokenizer.encode(k)[0]): v for k, v in bias.items()}
    extra: dict[str, Any] = {"logit_bias": ids} if ids else {}
    requests = [
        add_request(
            engine,
            [256, 40 + seed],
            SamplingParams(temperature=1.0 if seed else 0.0, seed=seed, max_tokens=100, **extra),
            f"{len(bias)}-{seed}",
            grammar=grammar,
        )
        for seed in range(50)
    ]
    for request, text in zip(requests, run(engine, requests), strict=True):
        assert request.finish_reason == "stop"
        jsonschema.validate(json.loads(text), FINITE)


def test_listed_values_are_exact_beside_free_requests(engine: Engine, grammars: GrammarCompiler) -> None:
    free = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    alone = add_request(engine, [256, 1, 2], free, "alone")
    run(engine, [alone])
    grammar = grammars.compile_async(StructuredSpec("json_schema", {"enum": VALUES}))
    guided = [
        add_request(engine, [256, i], SamplingParams(seed=i, max_tokens=60), f"v{i}", grammar=grammar)
        for i in range(20)
    ]
    beside = add_request(engine, [256, 1, 2], free, "beside")
    texts = run(engine, [*guided, beside])
    assert {json.loads(t) for t in texts[:-1]} <= set(VALUES)
    assert len(set(texts[:-1])) > 1
    assert beside.outputs == alone.outputs
