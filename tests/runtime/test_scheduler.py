"""The scheduler alone: budgets, order, preemption, and a random walk in which no token is lost or repeated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inferir.ir.dtypes import DType
from inferir.ir.errors import EngineError
from inferir.ir.kv_cache import FullAttentionSpec, KVCacheGroup, SlidingWindowSpec
from inferir.runtime.kv.cache import KVCache, table_inputs
from inferir.runtime.kv.pool import BlockPool
from inferir.runtime.request import Request, Status
from inferir.runtime.sampling import SamplingParams
from inferir.runtime.scheduler import Scheduler, SchedulerOptions, StepPlan

BLOCK = 4


def make(num_blocks: int = 33, max_seqs: int = 4, max_tokens: int = 16, window: int = 0) -> Scheduler:
    size: dict[str, Any] = {"block_size": BLOCK, "kv_heads": 1, "head_dim": 1, "value_dim": 1, "dtype": DType.F32}
    spec = SlidingWindowSpec(**size, window=window) if window else FullAttentionSpec(**size)
    tables = table_inputs((KVCacheGroup(spec=spec, layers=(0,)),))
    return Scheduler(SchedulerOptions(max_seqs=max_seqs, max_tokens=max_tokens), KVCache(tables, BlockPool(num_blocks)))


def request(scheduler: Scheduler, name: str, prompt: int, total: int = 1000) -> Request:
    made = Request(name, [1] * prompt, SamplingParams(), total, 0, scheduler.kv.new_sequence())
    scheduler.add(made)
    return made


def apply(scheduler: Scheduler, plan: StepPlan) -> list[Request]:
    """What the engine does after a step, with a made-up token; the requests that got one."""
    sampled = [s.request for s in plan.scheduled if s.request.remaining == s.tokens]
    scheduler.complete(plan)
    for r in sampled:
        r.outputs.append(len(r.outputs))
        if r.num_tokens >= r.max_total:
            scheduler.finish(r)
    return sampled


def shape(plan: StepPlan) -> list[tuple[str, int]]:
    return [(s.request.id, s.tokens) for s in plan.scheduled]


def test_prompt_is_chunked_to_the_budget_and_the_rest_admits_others() -> None:
    s = make()
    request(s, "a", 20)
    request(s, "b", 20)
    plans = []
    for _ in range(3):
        plans.append(s.schedule())
        apply(s, plans[-1])
    assert [shape(p) for p in plans] == [[("a", 16)], [("a", 4), ("b", 12)], [("a", 1), ("b", 8)]]


def test_sequence_limit() -> None:
    s = make(max_seqs=2)
    for name in "abc":
        request(s, name, 2)
    assert shape(s.schedule()) == [("a", 2), ("b", 2)]
    assert list(s.waiting) == ["c"]


def test_admission_waits_until_the_whole_prompt_fits_beside_the_running_ones() -> None:
    s = make(num_blocks=9, max_tokens=8)  # 8 blocks
    request(s, "a", 20)  # needs 5 blocks, takes 2 in its first step
    request(s, "b", 16)  # needs 4
    request(s, "c", 1)
    assert shape(s.schedule()) == [("a", 8)]
    assert list(s.waiting) == ["b", "c"]  # first come, first served: c does not overtake


def test_latest_comer_gives_way_and_returns_to_the_head_of_the_queue() -> None:
    s = make(num_blocks=5)  # 4 blocks
    a, b = request(s, "a", 7), request(s, "b", 7)
    apply(s, s.schedule())
    c = request(s, "c", 1)
    preempted: list[Request] = []
    while not preempted:
        plan = s.schedule()
        preempted = plan.preempted
        apply(s, plan)
    assert preempted == [b]
    assert s.waiting.values() == [b, c]
    assert (b.status, b.computed, b.preemptions, b.blocks[0].ids) == (Status.WAITING, 0, 1, [])
    assert shape(plan) == [("a", 1)]
    assert len(b.outputs) == 2
    s.finish(a)
    assert shape(s.schedule()) == [("b", 9), ("c", 1)]


def test_id_is_free_again_after_finish() -> None:
    s = make()
    first = request(s, "a", 1)
    with pytest.raises(EngineError, match="'a'"):
        request(s, "a", 1)
    s.finish(first)
    assert not s.has_unfinished
    request(s, "a", 1)


def test_options_that_cannot_advance_everyone() -> None:
    with pytest.raises(EngineError, match="a step of 3 tokens cannot advance 4 sequences"):
        SchedulerOptions(max_seqs=4, max_tokens=3)


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and steps over a small pool."""

    @initialize(
        blocks=st.integers(5, 12), seqs=st.integers(1, 4), extra=st.integers(0, 9), window=st.sampled_from([0, 6])
    )
    def start(self, blocks: int, seqs: int, extra: int, window: int) -> None:
        self.s = make(blocks, seqs, seqs + extra, window)
        self.capacity = self.s.kv.capacity(60, seqs + extra)
        self.live: dict[str, Request] = {}
        self.count = 0

    @rule(prompt=st.integers(1, 40), answer=st.integers(1, 20))
    def add(self, prompt: int, answer: int) -> None:
        prompt = min(prompt, self.capacity - 1)
        self.count += 1
        made = request(self.s, f"r{self.count}", prompt, min(prompt + answer, self.capacity))
        self.live[made.id] = made

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.s.finish(self.live.pop(data.draw(st.sampled_from(sorted(self.live)))))

    @precondition(lambda self: self.live)
    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.s.has_unfinished:
                self.one_step()

    def one_step(self) -> None:
        before = {r.id: (r.computed, len(r.outputs)) for r in self.live.values()}
        running = list(self.s.running)
        plan = self.s.schedule()
        assert plan.scheduled, "no progress"
        assert sum(t.tokens for t in plan.scheduled) <= self.s.options.max_tokens
        assert len({t.request.id for t in plan.scheduled}) == len(plan.scheduled) <= self.s.options.max_seqs
        assert not {t.request.id for t in plan.scheduled} & {r.id for r in plan.preempted}
        if not plan.preempted:
            assert {t.request.id for t in plan.scheduled} >= set(running), "a running request stood still"
        for t in plan.scheduled:
            assert 1 <= t.tokens <= t.request.remaining
            table = t.request.blocks[0]
            assert len(table.ids) * BLOCK >= t.request.computed + t.tokens
        sampled = apply(self.s, plan)
        for r in list(self.live.values()):
            assert r.outputs == list(range(len(r.outputs)))
            assert len(r.outputs) == before[r.id][1] + (r in sampled)
            if r.status is Status.FINISHED:
                assert r.num_tokens == r.max_total
                del self.live[r.id]

    @invariant()
    def blocks_balance(self) -> None:
        held = [b for r in self.live.values() for t in r.blocks for b in t.ids if b]
        assert len(held) == len(set(held)) == self.s.kv.pool.num_used
        assert all(not r.blocks[0].ids for r in self.s.waiting.values())
        assert set(self.s.waiting) | set(self.s.running) == set(self.live)

    def teardown(self) -> None:
        if not hasattr(self, "s"):
            return
        for _ in range(5000):
            if not self.s.has_unfinished:
                break
            self.one_step()
        assert not self.live
        assert self.s.kv.pool.num_used == 0


TestSchedulerWalk = SchedulerMachine.TestCase
TestSchedulerWalk.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
