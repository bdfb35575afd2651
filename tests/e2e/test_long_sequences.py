"""One long sequence: its attention is split over threads, and the answer has the bits of one thread's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest

from inferir import LLM, SamplingParams
from inferir.compile.compiler import CompileOptions, compile_model
from inferir.ir.contract.split_kv import SPLIT

LENGTH = 3 * SPLIT
GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
PROMPTS = [np.random.default_rng(n).integers(0, 256, n).tolist() for n in (2 * SPLIT - 12, SPLIT - 3, 40)]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Small models that take long sequences, each compiled once."""
    root = tmp_path_factory.mktemp("long")
    made: dict[tuple[str, str], Path] = {}

    def get(name: str, dtype: str) -> Path:
        if (name, dtype) not in made:
            model = root / name
            if not model.exists():
                families.write(getattr(families, name)(max_position_embeddings=LENGTH), model)
            options = CompileOptions(
                dtype=dtype, max_num_batched_tokens=64, max_num_seqs=4, buckets="1-8,9-64", block_size=16, jobs=1
            )
            compile_model(str(model), root / f"{name}-{dtype}", options)
            made[name, dtype] = root / f"{name}-{dtype}"
        return made[name, dtype]

    return get


def served(llm: LLM, prompts: list[list[int]], *, threads: int) -> tuple[list[list[int]], list[np.ndarray], int]:
    """Greedy tokens, logits of every step's rows, and steps with split items if split as for this many threads."""
    engine: Any = llm.engine
    items, executor = engine.batch._items, engine.executor
    items._splitting = replace(items._splitting, threads=threads)
    run, logits, merged = executor.wait, [], 0

    def observe(step: Any) -> Any:
        nonlocal merged
        counts = step.counts
        merged += counts.merges > 0
        out = run(step)
        logits.append(out.logits.copy())
        return out

    executor.wait = observe
    try:
        return [o.token_ids for o in llm.generate(prompts, GREEDY)], logits, merged
    finally:
        executor.wait = run


@pytest.mark.parametrize(("model", "dtype"), [("llama", "f32"), ("gemma3", "bf16")])
def test_splitting_changes_no_bit(model: str, dtype: str, artifact: Callable[[str, str], Path]) -> None:
    """Decoding across the end of a split, alone and beside others, split or not; and the prompt in one-token steps."""
    with LLM(artifact(model, dtype), threads=2, enable_prefix_caching=False) as llm:
        for prompts in (PROMPTS[:1], PROMPTS):
            tokens, logits, merged = served(llm, prompts, threads=64)
            whole, expected, none = served(llm, prompts, threads=1)
            assert merged >= 30
            assert none == 0
            assert tokens == whole
            assert len(logits) == len(expected)
            for got, want in zip(logits, expected, strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_split_decode_step_has_the_bits_of_a_prefill(artifact: Callable[[str, str], Path]) -> None:
    prompt = PROMPTS[0] + PROMPTS[2]  # crosses the end of a split
    with LLM(artifact("llama", "f32"), threads=2, enable_prefix_caching=False) as llm:
        (want,) = llm.logits([prompt])
        items = llm.engine.batch._items
        items._splitting = replace(items._splitting, threads=64)
        (got,) = llm.logits([prompt], chunk=1)
    np.testing.assert_array_equal(got, want)
