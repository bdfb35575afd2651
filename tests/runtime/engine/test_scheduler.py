"""The scheduler alone: budgets, order, preemption, priorities, limits."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from window_rule import reads

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.errors import EngineError, QueueFullError
from inferir.ir.graph.dtypes import DType
from inferir.runtime.engine.scheduler import Scheduler, SchedulerOptions, StepPlan
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.kv.prefix_cache import PrefixKey
from inferir.runtime.requests.request import Request, Scheduled, Status
from inferir.runtime.sampling.sampling_params import SamplingParams

BLOCK = 4


def make(
    num_blocks: int = 33,
    max_seqs: int = 4,
    max_tokens: int = 16,
    window: int = 0,
    caching: bool = False,
    **options: Any,
) -> Scheduler:
    size: dict[str, Any] = {"block_size": BLOCK, "kv_heads": 1, "head_dim": 1, "value_dim": 1, "dtype": DType.F32}
    spec = AttentionSpec(**size, reads=reads(window))
    groups = (KVCacheGroup(spec=spec, layers=(0,)),)
    return Scheduler(
        SchedulerOptions(max_seqs=max_seqs, max_tokens=max_tokens, **{"max_rows": max_seqs, **options}),
        KVCache(groups, BlockPool(num_blocks), prefix_caching=caching),
    )


def request(scheduler: Scheduler, name: str, prompt: int, total: int = 1000, **fields: Any) -> Request:
    made = Request(name, [1] * prompt, SamplingParams(), total, 0, scheduler.kv.new_sequence(), **fields)
    scheduler.add(made)
    return made


def apply(scheduler: Scheduler, plan: StepPlan) -> list[Request]:
    """What the engine does after a step, with a made-up token; the requests that got one."""
    sampled = [s.request for s in plan.scheduled if s.request.remaining == s.tokens]
    scheduler.complete(plan, [s.tokens for s in plan.scheduled])
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
        SchedulerOptions(max_seqs=4, max_tokens=3, max_rows=4)


def test_options_that_make_no_sense() -> None:
    with pytest.raises(EngineError, match="scheduling_policy='lifo'"):
        SchedulerOptions(max_seqs=1, max_tokens=1, max_rows=1, policy="lifo")
    with pytest.raises(EngineError, match="2 logit rows"):
        SchedulerOptions(max_seqs=3, max_tokens=3, max_rows=2)


def test_priority_orders_the_queue_and_arrival_orders_equals() -> None:
    s = make(max_seqs=1, policy="priority")
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -5), ("e", 0)):
        request(s, name, 1, priority=priority)
    assert list(s.waiting) == ["d", "b", "e", "a", "c"]
    plain = make()
    for name, priority in (("a", 1), ("b", 0)):
        request(plain, name, 1, priority=priority)
    assert list(plain.waiting) == ["a", "b"]


def test_a_better_priority_takes_the_seat_of_the_worst() -> None:
    s = make(max_seqs=2, policy="priority")
    low = [request(s, f"low{i}", 3, priority=10 + i) for i in range(3)]
    apply(s, s.schedule())
    assert list(s.running) == ["low0", "low1"]
    request(s, "high", 2, priority=0)
    plan = s.schedule()
    assert plan.preempted == [low[1]]
    assert shape(plan) == [("low0", 1), ("high", 2)]
    assert list(s.waiting) == ["low1", "low2"]
    apply(s, plan)
    assert s.schedule().preempted == []  # equal seats now: nobody is moved without need


def test_nobody_gives_way_when_that_would_not_help() -> None:
    s = make(num_blocks=9, max_seqs=4, policy="priority")  # 8 blocks
    request(s, "first", 15, priority=0)
    request(s, "worst", 4, priority=9)
    apply(s, s.schedule())
    request(s, "big", 16, priority=5)  # 4 blocks + 1 for its answer would need those of "first" too
    assert s.kv.pool.num_free == 3
    first = s.find("first")
    assert first is not None
    first.prompt += [1] * 8
    plan = s.schedule()
    assert plan.preempted == []
    assert list(s.waiting) == ["big"]


def test_the_worst_priority_gives_way_when_blocks_run_out() -> None:
    s = make(num_blocks=5, policy="priority")  # 4 blocks
    bad = request(s, "bad", 7, priority=1)
    good = request(s, "good", 7, priority=0)
    preempted: list[Request] = []
    while not preempted:
        plan = s.schedule()
        preempted = plan.preempted
        apply(s, plan)
    assert preempted == [bad]
    assert good.status is Status.RUNNING


def test_long_prompts_are_limited_beside_others_only() -> None:
    s = make(long_prefill=5)
    request(s, "a", 30)
    alone = s.schedule()
    assert shape(alone) == [("a", 16)]
    apply(s, alone)
    request(s, "b", 9)
    both = s.schedule()
    assert shape(both) == [("a", 5), ("b", 5)]
    apply(s, both)
    found = s.find("b")
    assert found is not None
    s.finish(found)
    assert shape(s.schedule()) == [("a", 9)]


def test_steps_are_smaller_while_several_requests_share_them() -> None:
    s = make(shared_tokens=6)
    request(s, "a", 30)
    alone = s.schedule()
    assert shape(alone) == [("a", 16)]
    apply(s, alone)
    for name in "bc":
        request(s, name, 9)
    steps = []
    for _ in range(4):
        plan = s.schedule()
        steps.append(shape(plan))
        apply(s, plan)
    assert steps == [[("a", 6)], [("a", 6)], [("a", 2), ("b", 4)], [("a", 1), ("b", 5)]]


def test_shared_steps_leave_prompts_as_many_tokens_as_running_requests_take() -> None:
    s = make(shared_tokens=1, max_seqs=4, max_tokens=16)
    for name in "abc":
        request(s, name, 1)
    for _ in range(3):
        apply(s, s.schedule())
    assert len(s.running) == 3
    request(s, "d", 9)
    assert shape(s.schedule()) == [("a", 1), ("b", 1), ("c", 1), ("d", 3)]


def test_queue_limit_counts_what_finds_no_seat() -> None:
    s = make(max_seqs=2, max_waiting=1)
    for name in "abc":
        request(s, name, 3)
    for name in "de":
        with pytest.raises(QueueFullError, match="max_waiting is 1; try again later") as e:
            request(s, name, 3)
        assert e.value.waiting == 3
    apply(s, s.schedule())
    assert list(s.waiting) == ["c"]
    with pytest.raises(QueueFullError):
        s.check_room(1)
    s.finish(s.running.first)
    request(s, "d", 3)
    with pytest.raises(QueueFullError):
        s.check_room(1)


def test_prompt_rows_split_chunks_and_leave_a_row_to_everyone() -> None:
    s = make(max_seqs=3, max_rows=5)
    scored = request(s, "scored", 12, prompt_logprobs=[None])
    request(s, "plain", 4)
    plan = s.schedule()
    assert shape(plan) == [("scored", 5)]
    assert list(scored.unscored(5)) == [0, 1, 2, 3, 4]
    apply(s, plan)
    scored.prompt_logprobs = [None] * 6
    assert shape(s.schedule()) == [("scored", 5)]
    scored.computed, scored.prompt_logprobs = 10, [None] * 11
    plan = s.schedule()
    assert shape(plan) == [("scored", 2), ("plain", 4)]
    apply(s, plan)
    again = request(s, "again", 9, prompt_logprobs=[None])
    again.prompt_logprobs = [None] * 5  # after a preemption: four of its positions are known already
    assert shape(s.schedule()) == [("scored", 1), ("plain", 1), ("again", 7)]


def test_requests_wait_for_grammars_and_leaders_without_holding_others_up() -> None:
    s = make()
    future: Future[Any] = Future()
    broken: Future[Any] = Future()
    guided = request(s, "guided", 2, grammar=future)
    failing = request(s, "failing", 2, grammar=broken)
    leader = request(s, "leader", 20)
    child = request(s, "child", 20, leader=leader)
    plan = s.schedule()
    assert shape(plan) == [("leader", 16)]
    assert (s.num_waiting, s.find("guided")) == (3, guided)
    apply(s, plan)
    broken.set_exception(ValueError("bad schema"))
    plan = s.schedule()
    assert shape(plan) == [("leader", 4)]
    assert [(r, str(e)) for r, e in plan.failed] == [(failing, "bad schema")]
    apply(s, plan)

    class Grammar:
        def new_state(self, extra_stops: Any = ()) -> str:
            return "state"

    future.set_result(Grammar())
    plan = s.schedule()
    assert shape(plan) == [("leader", 1), ("guided", 2), ("child", 13)]
    assert guided.matcher == "state"
    assert child.leader is None
    cancelled: Future[Any] = Future()
    request(s, "cancelled", 2, grammar=cancelled)
    cancelled.cancel()
    assert [r.id for r, _ in s.schedule().failed] == ["cancelled"]


def test_a_child_goes_on_when_its_leader_ends_before_its_first_token() -> None:
    s = make()
    leader = request(s, "leader", 3)
    request(s, "child", 3, leader=leader)
    s.finish(leader)
    assert shape(s.schedule()) == [("child", 3)]


def test_a_long_prompt_of_worse_priority_keeps_nobody_better_out() -> None:
    s = make(max_seqs=2, policy="priority")
    request(s, "low", 60, priority=5)
    apply(s, s.schedule())
    request(s, "high", 9, priority=0)
    plan = s.schedule()
    assert shape(plan) == [("low", 15), ("high", 1)]
    apply(s, plan)
    assert shape(s.schedule()) == [("high", 8), ("low", 8)]
    plain = make(max_seqs=2)
    request(plain, "low", 60, priority=5)
    apply(plain, plain.schedule())
    request(plain, "high", 9, priority=0)
    assert shape(plain.schedule()) == [("low", 16)]


def test_tokens_that_do_not_stand_are_computed_again() -> None:
    s = make()
    a = request(s, "a", 8)
    apply(s, s.schedule())
    a.outputs += [11, 12, 13]
    plan = s.schedule()
    assert shape(plan) == [("a", 4)]
    s.complete(plan, [2])
    assert (a.computed, a.remaining) == (10, 2)
    assert shape(s.schedule()) == [("a", 2)]


def test_tokens_that_stand_before_they_are_known_are_not_found_by_others() -> None:
    """As drafts that a step accepted: the request gets them only when the step is delivered."""
    s = make(caching=True)
    a = request(s, "a", 7, hashes=s.kv.hashes(PrefixKey()))
    apply(s, s.schedule())
    assert (a.num_tokens, a.committed) == (8, 1)
    s.kv.reserve(a.blocks, a.computed, 12)
    s.complete(StepPlan([Scheduled(a, 5)]), [5])
    assert (a.computed, a.committed) == (12, 2)
    a.outputs += [11, 12, 13, 14, 15]
    apply(s, s.schedule())
    assert a.committed == 3
