"""Failures that other engines were reported to have, as tests of this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from artifacts import VOCAB
from engine_requests import add_request

from inferir.api.llm import LLM, RequestOutput, SamplingParams
from inferir.ir.errors import RequestError
from inferir.runtime.engine.engine import Engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def poison(llm: LLM) -> None:
    """Fill the KV cache with NaN: whoever reads what was not written shows it."""
    llm.engine.executor._memory._pool[:] = 0xFF  # type: ignore[attr-defined]


def test_simultaneous_requests_over_a_pool_that_was_never_written(tiny_artifact: Path) -> None:
    """A common beginning, different ends, all at once; then a request aborted while its prompt is being computed."""
    common = tokens(70, 1)
    prompts = [common + tokens(1 + i % 9, 100 + i) for i in range(32)]
    with LLM(tiny_artifact, threads=1, enable_prefix_caching=False) as alone:
        expected = [alone.generate(p, GREEDY)[0].token_ids for p in prompts]
    with LLM(tiny_artifact, threads=1) as llm:
        poison(llm)
        assert [o.token_ids for o in llm.generate(prompts, GREEDY)] == expected
        assert llm.stats().prefix_hits > 0
    with LLM(tiny_artifact, threads=1, max_num_batched_tokens=24) as llm:
        poison(llm)
        request = add_request(llm.engine, prompts[0], GREEDY)
        llm.engine.step()
        assert 0 < request.computed < len(prompts[0])
        llm.engine.abort(request.id)
        assert [o.token_ids for o in llm.generate(prompts, GREEDY)] == expected


def test_a_prompt_larger_than_the_pool_is_refused_and_others_go_on(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_blocks=51, max_model_len=2000, max_tokens=64)  # 200 slots
    with pytest.raises(RequestError, match=r"1000 tokens.*holds 200 per request"):
        add_request(engine, [1] * 1000, GREEDY)
    long = add_request(engine, [1] * 100, SamplingParams(temperature=0.0, max_tokens=2000))
    small = add_request(engine, [2] * 5, SamplingParams(temperature=0.0, max_tokens=4))
    while engine.has_unfinished:
        engine.step()
    assert (long.finish_reason, len(long.outputs)) == ("length", 100)
    assert len(small.outputs) == 4


def test_low_priorities_finish_in_the_end(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(max_seqs=2, policy="priority")
    low = add_request(engine, [1] * 5, SamplingParams(temperature=0.0, max_tokens=20), priority=9)
    for i in range(30):
        add_request(engine, [2, i], SamplingParams(temperature=0.0, max_tokens=3), priority=0)
        engine.step()
    while engine.has_unfinished:
        engine.step()
    assert low.finish_reason == "length"


def test_host_memory_does_not_grow_with_requests(tiny_artifact: Path) -> None:
    """Unique prompts, aborted ones, refused ones: what is kept is bounded by the number of blocks."""
    one = SamplingParams(temperature=0.0, max_tokens=1)
    with LLM(tiny_artifact, threads=1, kv_cache_memory="256KiB") as llm:

        def phase(start: int) -> None:
            llm.generate([tokens(40, start + i) for i in range(150)], one, cache_salt=str(start))
            for i in range(50):
                stream = llm.stream(tokens(40, start + 500 + i), GREEDY)
                next(stream, None)
                stream.close()
            for _ in range(50):
                with pytest.raises(RequestError):
                    llm.generate([[VOCAB]], one)

        phase(0)
        before, threads = anonymous_kib(), threading.active_count()
        for i in range(1, 5):
            phase(1000 * i)
        assert anonymous_kib() - before < 8 * 1024
        assert threading.active_count() == threads
        assert not llm._local._loop._takers
        assert not llm.engine.has_unfinished
        prefix = llm.engine.kv.prefix
        assert prefix is not None
        assert 0 < len(prefix) < llm.engine.kv.pool.num_blocks


def anonymous_kib() -> int:
    sizes = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(sizes["RssAnon"].split()[0]) + int(sizes["VmSwap"].split()[0])


def test_streams_that_run_out_of_room_repeat_nothing(tiny_artifact: Path) -> None:
    """Six long streams over blocks for two: each like alone, greedy, seeded, and with log-probabilities."""
    base = {"max_tokens": 100, "ignore_eos": True}
    kinds = [
        SamplingParams(temperature=0.0, **base),
        SamplingParams(temperature=0.9, seed=4, **base),
        SamplingParams(temperature=0.0, logprobs=2, **base),
    ]
    params = [kinds[i % 3] for i in range(6)]
    prompts = [tokens(10 + i, i) for i in range(6)]

    def run(llm: LLM, together: bool) -> list[RequestOutput]:
        if together:
            return llm.generate(prompts, params)
        return [llm.generate(p, q)[0] for p, q in zip(prompts, params, strict=True)]

    with LLM(tiny_artifact, threads=1) as llm:
        block = llm.manifest.memory.kv_block_bytes
        expected = [o.outputs for o in run(llm, together=False)]
    with LLM(tiny_artifact, threads=1, kv_cache_memory=9 * block) as llm:
        assert [o.outputs for o in run(llm, together=True)] == expected
        assert llm.stats().preemptions > 0
