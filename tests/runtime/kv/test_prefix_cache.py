"""The prefix cache: what is found, by whom, when, and that answers do not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_requests import add_request
from window_rule import reads

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.errors import RequestError
from inferir.ir.graph.dtypes import DType
from inferir.runtime.engine.engine import Engine
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.kv_cache import KVCache, SequenceBlocks
from inferir.runtime.kv.prefix_cache import PrefixKey
from inferir.runtime.requests.request import Request
from inferir.runtime.sampling.sampling_params import SamplingParams

MakeEngine = Callable[..., Engine]
BLOCK = 4
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def make_cache(*windows: int, blocks: int = 40) -> KVCache:
    size: dict[str, Any] = {"block_size": BLOCK, "kv_heads": 1, "head_dim": 1, "value_dim": 1, "dtype": DType.F32}
    groups = tuple(
        KVCacheGroup(
            spec=AttentionSpec(**size, reads=reads(w)),
            layers=(i,),
            block_tables=f"t{i}",
            slots=f"s{i}",
        )
        for i, w in enumerate(windows)
    )
    return KVCache(groups, BlockPool(blocks), prefix_caching=True)


def hashes(cache: KVCache, tokens: list[int], key: PrefixKey | None = None) -> list[bytes]:
    chain = cache.hashes(key or PrefixKey())
    assert chain is not None
    return chain.upto(len(tokens) // BLOCK, lambda start, stop: tokens[start:stop])


def compute(cache: KVCache, tokens: list[int], key: PrefixKey | None = None) -> SequenceBlocks:
    """A sequence whose full blocks are committed, one step per block."""
    blocks = cache.new_sequence()
    chain = hashes(cache, tokens, key)
    for j in range(len(chain)):
        assert cache.reserve(blocks, j * BLOCK, (j + 1) * BLOCK)
        cache.commit(blocks, chain, j, j + 1)
    return blocks


def hit(cache: KVCache, tokens: list[int], key: PrefixKey | None = None) -> int:
    blocks = cache.new_sequence()
    length = cache.attach(blocks, hashes(cache, tokens, key))
    cache.free(blocks)
    return length


def test_the_longest_common_beginning_is_found_and_shared() -> None:
    cache = make_cache(0)
    first = compute(cache, list(range(16)))
    second = cache.new_sequence()
    assert cache.attach(second, hashes(cache, [*range(10), 99, *range(11, 16)])) == 8
    assert second[0].ids == first[0].ids[:2]
    assert [cache.pool.refs(b) for b in first[0].ids] == [2, 2, 1, 1]
    cache.free(first)
    assert cache.pool.num_used == 2
    cache.free(second)
    assert cache.pool.num_used == 0
    assert hit(cache, [1, *range(1, 16)]) == 0
    assert hit(cache, list(range(16))) == 16


def test_blocks_unused_for_longest_are_lost_first_and_ends_before_beginnings() -> None:
    cache = make_cache(0, blocks=9)  # 8 blocks
    old, new = list(range(16)), list(range(50, 66))
    for tokens in (old, new):
        cache.free(compute(cache, tokens))
    taken = cache.new_sequence()
    assert cache.reserve(taken, 0, 2 * BLOCK)
    assert (hit(cache, old), hit(cache, new)) == (8, 16)
    assert cache.prefix is not None
    assert len(cache.prefix) == 6
    assert cache.reserve(taken, 0, 8 * BLOCK)
    assert (hit(cache, old), hit(cache, new), len(cache.prefix)) == (0, 0, 0)


@pytest.mark.parametrize("window", [1, 4, 5, 6, 9, 13])
def test_a_window_needs_only_what_it_still_reads(window: int) -> None:
    cache = make_cache(window, blocks=60)
    tokens = list(range(40))
    cache.free(compute(cache, tokens))
    blocks = cache.new_sequence()
    chain = hashes(cache, tokens)
    assert cache.attach(blocks, chain) == 40
    read = max(0, 40 - window + 1) // BLOCK
    assert blocks[0].ids[:read] == [0] * read or window == 1
    assert all(blocks[0].ids[read:])
    cache.free(blocks)
    assert cache.prefix is not None
    first_read = min(read, 9)
    for j in range(first_read):  # losing what is behind the window loses no hit
        block = cache.prefix.find(0, chain[j])
        assert block is not None
        cache.prefix.forget(block)
    assert hit(cache, tokens) == 40
    block = cache.prefix.find(0, chain[first_read])
    assert block is not None
    cache.prefix.forget(block)
    assert hit(cache, tokens) == 0


def test_tables_agree_on_one_hit() -> None:
    cache = make_cache(0, 6, blocks=60)
    tokens = list(range(32))
    cache.free(compute(cache, tokens))
    chain = hashes(cache, tokens)
    assert cache.prefix is not None
    for table, j in ((0, 6), (1, 5)):
        block = cache.prefix.find(table, chain[j])
        assert block is not None
        cache.prefix.forget(block)
    assert hit(cache, tokens) == 20  # the full table has 24 tokens, of which the window lacks the last block
    assert cache.pool.num_used == 0


def test_keys_share_nothing() -> None:
    tokens = list(range(12))
    keys = [
        PrefixKey(),
        PrefixKey(salt="x"),
        PrefixKey(salt="y"),
        PrefixKey(adapter="x"),
        PrefixKey(salt="x", adapter="x"),
        PrefixKey(salt="x', 'y"),
        PrefixKey(prompt_length=12),
        PrefixKey(prompt_length=13),
    ]
    for stored in keys:
        cache = make_cache(0)
        cache.free(compute(cache, tokens, stored))
        assert [hit(cache, tokens, k) for k in keys] == [12 if k == stored else 0 for k in keys]


def test_hashes_depend_on_the_process() -> None:
    assert hashes(make_cache(0), [1, 2, 3, 4]) != hashes(make_cache(0), [1, 2, 3, 4])


def test_reset_forgets_everything_and_keeps_what_runs() -> None:
    cache = make_cache(0)
    blocks = compute(cache, list(range(12)))
    assert cache.prefix is not None
    cache.prefix.reset()
    assert hit(cache, list(range(12))) == 0
    cache.free(blocks)
    assert cache.pool.num_used == 0


def run(engine: Engine, *requests: Request) -> list[list[int]]:
    while engine.has_unfinished:
        engine.step()
    assert engine.kv.pool.num_used == 0
    return [r.outputs for r in requests]


@pytest.mark.parametrize("windows", [(0,), (5,), (1,), (0, 7)])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_prompts_around_full_blocks_three_times(make_engine: MakeEngine, windows: tuple[int, ...], blocks: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6)
    engine = make_engine(windows=windows)
    for length in (blocks * BLOCK - 1, blocks * BLOCK, blocks * BLOCK + 1):
        prompt = [7, *range(length, 2 * length - 1)]
        (expected,) = run(
            plain := make_engine(windows=windows, prefix_caching=False), add_request(plain, prompt, params)
        )
        for repeat in range(3):
            request = add_request(engine, prompt, params)
            assert run(engine, request) == [expected]
            full = (length - 1) // BLOCK * BLOCK  # the last token is always computed
            assert request.cached_tokens == (full if repeat else 0)


def test_a_block_is_not_found_before_the_step_that_fills_it(make_engine: MakeEngine) -> None:
    prompt = list(range(20))
    engine = make_engine(max_seqs=8, max_tokens=64)
    together = [add_request(engine, [*prompt, i], GREEDY) for i in range(2)]
    engine.step()
    assert [r.cached_tokens for r in together] == [0, 0]
    late = add_request(engine, [*prompt, 3], GREEDY)
    run(engine)
    assert late.cached_tokens == 20
    for i, request in zip((0, 1, 3), [*together, late], strict=True):
        plain = make_engine(prefix_caching=False)
        assert run(plain, add_request(plain, [*prompt, i], GREEDY)) == [request.outputs]


def test_only_computed_chunks_are_found_after_an_abort(make_engine: MakeEngine) -> None:
    prompt = list(range(40))
    engine = make_engine(max_tokens=10, max_seqs=2)
    add_request(engine, prompt, GREEDY, "a")
    engine.step()
    engine.abort("a")
    again = add_request(engine, prompt, GREEDY)
    (got,) = run(engine, again)
    assert again.cached_tokens == 8  # ten tokens were computed: two full blocks
    plain = make_engine(prefix_caching=False)
    assert run(plain, add_request(plain, prompt, GREEDY)) == [got]


def test_answers_are_found_too(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first = add_request(engine, [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=10))
    run(engine, first)
    second = add_request(engine, [1, 2, 3, *first.outputs, 5], GREEDY)
    run(engine)
    assert second.cached_tokens == 12  # 13 tokens, of which the last was never computed


def test_salts_divide_requests(make_engine: MakeEngine) -> None:
    engine = make_engine()
    found = []
    for salt in ("s1", "s1", "s2", None, None, "s1"):
        request = add_request(engine, list(range(20)), GREEDY, cache_salt=salt)
        run(engine)
        found.append(request.cached_tokens)
    assert found == [0, 16, 0, 0, 16, 16]
    bad: Any
    for bad in ("", "x" * 10**6, 5):
        with pytest.raises(RequestError) as e:
            add_request(engine, [1], GREEDY, cache_salt=bad)
        assert e.value.field == "cache_salt"


def test_counters_and_switch(make_engine: MakeEngine) -> None:
    for on in (True, False):
        engine = make_engine(prefix_caching=on)
        for _ in range(2):
            add_request(engine, list(range(20)), GREEDY)
            run(engine)
        stats = engine.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == ((40, 16) if on else (0, 0))
        engine.reset_prefix_cache()
        last = add_request(engine, list(range(20)), GREEDY)
        run(engine)
        assert last.cached_tokens == 0


def test_a_preempted_request_finds_its_own_blocks_and_counts_once(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=20, max_seqs=4, max_tokens=32)
    requests = [add_request(engine, [i] * 15, SamplingParams(temperature=0.0, max_tokens=25)) for i in range(4)]
    run(engine)
    assert engine.scheduler.num_preemptions > 0
    assert engine.stats().prefix_queries == 60
    for i, request in enumerate(requests):
        plain = make_engine(prefix_caching=False)
        assert run(plain, add_request(plain, [i] * 15, request.params)) == [request.outputs]


def test_models_whose_rotation_follows_the_prompt_share_only_between_equal_lengths(make_engine: MakeEngine) -> None:
    import numpy as np

    engine = make_engine()
    engine.executor.inputs["lengths"] = np.zeros(16, np.int32)
    found = []
    for length in (20, 24, 20):
        request = add_request(engine, list(range(length)), GREEDY)
        run(engine)
        found.append(request.cached_tokens)
    assert found == [0, 0, 16]
