"""The Python API over a compiled tiny model: caching, log-probabilities, several answers; each against runs without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from artifacts import VOCAB, compile_tiny
from families import ONE_BUCKET, gemma3, mistral, write

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.errors import EngineError, QueueFullError, RequestError
from inferir.runtime.sampling.token_logprobs import token_logprobs

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


@pytest.fixture(scope="module")
def llm(tiny_artifact: Path) -> Iterator[LLM]:
    with LLM(tiny_artifact, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(tiny_artifact: Path) -> Iterator[LLM]:
    with LLM(tiny_artifact, threads=1, enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module", params=["gemma3", "mistral"])
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with windows in every other layer, or in all."""
    config: Callable[[], object] = {"gemma3": gemma3, "mistral": mistral}[request.param]
    root = tmp_path_factory.mktemp(request.param)
    compile_tiny(write(config(), root / "model"), root / "artifact", **ONE_BUCKET)
    return root / "artifact"


def test_windowed_models_give_the_same_bits_from_the_cache(windowed: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=5)
    prompt = tokens(100)
    with LLM(windowed, threads=1) as cached, LLM(windowed, threads=1, enable_prefix_caching=False) as cold:
        block = cold.engine.kv.block_size
        assert block <= 32
        prompts = [prompt] * 3 + [prompt[:67] + tokens(30, 1)] * 2 + [prompt[: k * block] for k in (1, 2, 3)] * 2
        for p in prompts:
            (got,), (expected,) = cached.generate(p, params), cold.generate(p, params)
            assert got.outputs == expected.outputs  # ids and log-probabilities, bit by bit
        assert cached.stats().prefix_hits > 300
        together = cached.generate(prompts, params)
        assert [o.outputs for o in together] == [o.outputs for o in cold.generate(prompts, params)]


def test_full_blocks_and_requests_of_one_step(llm: LLM, plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    b = llm.engine.kv.block_size
    common = tokens(2 * b, 2)
    long = tokens(3 * b + 1, 9)
    lengths = [k * b + d for k in (1, 2, 3) for d in (-1, 0, 1)]
    prompts = [[*common, i] for i in range(8)] + [long[:n] for n in lengths]
    expected = [plain.generate(p, params)[0].outputs for p in prompts]
    llm.reset_prefix_cache()
    assert [o.outputs for o in llm.generate(prompts, params)] == expected  # a cold pool, all at once
    for _ in range(2):
        again = llm.generate(prompts, params)
        assert [o.outputs for o in again] == expected
        assert [o.cached_tokens for o in again] == [2 * b] * 8 + [(n - 1) // b * b for n in lengths]


def test_salts(llm: LLM) -> None:
    prompt = tokens(40, 3)
    found = [llm.generate(prompt, GREEDY, cache_salt=s)[0].cached_tokens for s in ("a", "a", "b", None)]
    assert found == [0, 32, 0, 0]
    outputs = llm.generate([prompt, prompt], GREEDY, cache_salt=["a", "c"], priority=[1, 2])
    assert [o.cached_tokens for o in outputs] == [32, 0]
    with pytest.raises(RequestError, match="1 values of cache_salt were given for 2 prompts"):
        llm.generate([prompt, prompt], GREEDY, cache_salt=["a"])


def test_logprobs_of_answer_and_prompt(llm: LLM) -> None:
    prompt = tokens(37, 4)
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=9, ignore_eos=True, logprobs=5, prompt_logprobs=2)
    for _ in range(2):
        (output,) = llm.generate(prompt, params)
        (rows,) = llm.logits([prompt + output.token_ids])
        assert output.prompt_logprobs == [None, *(token_logprobs(rows[i], prompt[i + 1], 2) for i in range(36))]
        expected = [token_logprobs(rows[36 + i], t, 5) for i, t in enumerate(output.token_ids)]
        assert output.logprobs == expected
        assert output.cached_tokens == 0
    (bare,) = llm.generate(prompt, GREEDY)
    assert (bare.logprobs, bare.prompt_logprobs) == (None, None)


def test_several_answers(llm: LLM, plain: LLM) -> None:
    prompt = tokens(40, 5)
    params = SamplingParams(n=4, temperature=1.0, seed=11, max_tokens=10, ignore_eos=True)
    first, second = llm.generate([prompt, tokens(5, 6)], params)
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(c.token_ids) for c in first.outputs}) == 4
    assert first.token_ids == first.outputs[0].token_ids
    assert len(second.outputs) == 4
    assert [o.outputs for o in plain.generate([prompt, tokens(5, 6)], params)] == [first.outputs, second.outputs]
    assert (
        plain.generate(prompt, SamplingParams(temperature=1.0, seed=11, max_tokens=10, ignore_eos=True))[0].token_ids
        == first.token_ids
    )
    with pytest.raises(RequestError, match="a stream gives one answer"):
        llm.stream(prompt, params)


def test_queue_limit_and_options(tiny_artifact: Path) -> None:
    with LLM(tiny_artifact, threads=1, max_num_seqs=2, max_waiting=1, scheduling_policy="priority") as llm:
        with pytest.raises(QueueFullError, match="max_waiting is 1"):
            llm.generate([[1]] * 4, GREEDY)
        assert not llm.engine.has_unfinished
        assert len(llm.generate([[1]] * 3, GREEDY)) == 3
        assert llm.stats().finished == {"length": 3}
    with pytest.raises(EngineError, match="scheduling_policy='best'"):
        LLM(tiny_artifact, scheduling_policy="best")
    with pytest.raises(EngineError, match="long_prefill_tokens=0"):
        LLM(tiny_artifact, long_prefill_tokens=0)
