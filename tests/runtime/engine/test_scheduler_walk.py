"""A random walk over scheduler, cache and prefix cache, against a model of what every cache slot contains."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from window_rule import reads

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.kv_specs import AttentionSpec
from inferir.ir.graph.dtypes import DType
from inferir.runtime.engine.scheduler import Scheduler, SchedulerOptions, StepPlan
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.kv.prefix_cache import PrefixKey
from inferir.runtime.requests.request import Request, Status
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.sampling.token_logprobs import TokenLogprobs

BLOCK = 4
SCORE = TokenLogprobs(0, 0.0, 1, ())


SPEC = st.tuples(
    st.sampled_from([0, 0, 1]),  # text
    st.integers(1, 10).map(lambda n: 4 * n) | st.integers(1, 40),  # prompt
    st.integers(1, 20),  # answer
    st.integers(0, 2),  # priority
    st.sampled_from([None, None, "s"]),  # salt
    st.sampled_from([False, False, True]),  # scored
    st.sampled_from(["no", "no", "no", "grammar", "leader"]),  # what it waits for
)


class _Grammar:
    def new_state(self, extra_stops: Any = ()) -> Any:
        return object()


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and steps over a small pool. Prompts are beginnings of few texts, so they share blocks.

    The content of a slot is the whole beginning of the sequence up to it: what the keys and values of a real model
    depend on.
    """

    @initialize(
        blocks=st.integers(5, 20),
        seqs=st.integers(1, 4),
        extra=st.integers(0, 9),
        rows=st.integers(0, 4),
        windows=st.sampled_from([(0,), (6,), (1,), (0, 6), (-6,)]),
        prefix=st.sampled_from([True, True, False]),
        policy=st.sampled_from(["fcfs", "priority"]),
        long_prefill=st.sampled_from([None, 3]),
    )
    def start(
        self,
        blocks: int,
        seqs: int,
        extra: int,
        rows: int,
        windows: tuple[int, ...],
        prefix: bool,
        policy: str,
        long_prefill: int | None,
    ) -> None:
        size: dict[str, Any] = {"block_size": BLOCK, "kv_heads": 1, "head_dim": 1, "value_dim": 1, "dtype": DType.F32}
        self.windows = windows
        groups = tuple(
            KVCacheGroup(
                spec=AttentionSpec(**size, reads=reads(w)),
                layers=(i,),
                block_tables=f"t{i}",
                slots=f"s{i}",
            )
            for i, w in enumerate(windows)
        )
        kv = KVCache(groups, BlockPool(blocks * len(windows)), prefix_caching=prefix)
        options = SchedulerOptions(
            max_seqs=seqs, max_tokens=seqs + extra, max_rows=seqs + rows, policy=policy, long_prefill=long_prefill
        )
        self.s = Scheduler(options, kv)
        self.capacity = kv.capacity(60, seqs + extra)
        self.live: dict[str, Request] = {}
        self.content: dict[tuple[int, int], int] = {}
        self.count = 0
        self.counters = (0, 0, 0)

    @rule(specs=st.lists(SPEC, min_size=2, max_size=5))
    def add(self, specs: list[tuple[Any, ...]]) -> None:
        for spec in specs:
            self.add_one(*spec)

    def add_one(
        self, text: int, prompt: int, answer: int, priority: int, salt: str | None, scored: bool, waits: str
    ) -> None:
        prompt = min(prompt, self.capacity - 1)
        self.count += 1
        made = Request(
            f"r{self.count}",
            [(i * (text + 1)) % 7 for i in range(prompt)],
            SamplingParams(),
            min(prompt + answer, self.capacity),
            0,
            self.s.kv.new_sequence(),
            priority=priority,
            cache_salt=salt,
            hashes=self.s.kv.hashes(PrefixKey(salt=salt)),
            grammar=Future() if waits == "grammar" else None,
            leader=next(iter(self.live.values()), None) if waits == "leader" else None,
            prompt_logprobs=[None] if scored else None,
        )
        self.s.add(made)
        self.live[made.id] = made

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.s.finish(self.live.pop(data.draw(st.sampled_from(sorted(self.live)))))

    def compile_grammars(self) -> None:
        for request in self.live.values():
            if request.grammar is not None and not request.grammar.done():
                request.grammar.set_result(_Grammar())

    @precondition(lambda self: self.s.kv.prefix is not None)
    @rule(now=st.integers(0, 3))
    def reset(self, now: int) -> None:
        assert self.s.kv.prefix is not None
        if now == 0:
            self.s.kv.prefix.reset()

    @precondition(lambda self: self.live)
    @rule(steps=st.integers(1, 15), compile_grammars=st.booleans())
    def step(self, steps: int, compile_grammars: bool) -> None:
        if compile_grammars:
            self.compile_grammars()
        for _ in range(steps):
            if self.s.has_unfinished:
                self.one_step()

    def one_step(self) -> None:
        before = {r.id: len(r.outputs) for r in self.live.values()}
        running = list(self.s.running)
        blocked = all(not r.ready for r in self.live.values())
        plan = self.s.schedule()
        assert plan.scheduled or blocked, "no progress"
        self.check_budgets(plan, running)
        self.check_contents(plan)
        sampled = self.run(plan)
        for r in list(self.live.values()):
            assert r.outputs == list(range(len(r.outputs)))
            assert len(r.outputs) == before[r.id] + (r in sampled)
            if r.status is Status.FINISHED:
                assert r.num_tokens == r.max_total
                assert r.prompt_logprobs is None or len(r.prompt_logprobs) == len(r.prompt)
                del self.live[r.id]

    def check_budgets(self, plan: StepPlan, running: list[str]) -> None:
        options = self.s.options
        rows = sum(len(t.request.unscored(t.tokens)) + (t.tokens == t.request.remaining) for t in plan.scheduled)
        assert sum(t.tokens for t in plan.scheduled) <= options.max_tokens
        assert rows <= options.max_rows
        assert len({t.request.id for t in plan.scheduled}) == len(plan.scheduled) <= options.max_seqs
        assert not {t.request.id for t in plan.scheduled} & {r.id for r in plan.preempted}
        if not plan.preempted:
            assert {t.request.id for t in plan.scheduled} >= set(running), "a running request stood still"

    def key(self, request: Request, position: int) -> int:
        return hash((request.cache_salt, tuple(request.tokens(0, position + 1))))

    def check_contents(self, plan: StepPlan) -> None:
        """Before the step writes: what it will read of earlier steps is there."""
        for t in plan.scheduled:
            r = t.request
            assert 1 <= t.tokens <= r.remaining
            for index, (table, window) in enumerate(zip(r.blocks, self.windows, strict=True)):
                assert len(table.ids) * BLOCK >= r.computed + t.tokens
                for p in range(max(0, reads(window).first(r.computed)), r.computed):
                    slot = table.ids[p // BLOCK] * BLOCK + p % BLOCK
                    assert self.content[index, slot] == self.key(r, p)

    def run(self, plan: StepPlan) -> list[Request]:
        """What device and engine do, with made-up tokens; the requests that got one."""
        written: set[int] = set()
        for t in plan.scheduled:
            r = t.request
            for index, table in enumerate(r.blocks):
                for p in range(r.computed, r.computed + t.tokens):
                    block = table.ids[p // BLOCK]
                    slot = block * BLOCK + p % BLOCK
                    assert block
                    assert slot not in written
                    assert self.s.kv.pool.refs(block) == 1, "a shared block is written"
                    written.add(slot)
                    self.content[index, slot] = self.key(r, p)
        sampled = [t.request for t in plan.scheduled if t.request.remaining == t.tokens]
        for t in plan.scheduled:
            if t.request.prompt_logprobs is not None:
                t.request.prompt_logprobs += [SCORE] * len(t.request.unscored(t.tokens))
        self.s.complete(plan, [s.tokens for s in plan.scheduled])
        for r in sampled:
            r.outputs.append(len(r.outputs))
            if r.num_tokens >= r.max_total:
                self.s.finish(r)
        return sampled

    @invariant()
    def blocks_balance(self) -> None:
        pool = self.s.kv.pool
        held = [b for r in self.live.values() for t in r.blocks for b in t.ids if b]
        assert len(set(held)) == pool.num_used
        assert all(pool.refs(b) == held.count(b) for b in set(held))
        assert self.s.kv.prefix is not None or len(set(held)) == len(held)
        idle = [*self.s.waiting.values(), *self.s.pending.values()]
        assert all(not t.ids for r in idle for t in r.blocks)
        assert set(self.s.waiting) | set(self.s.running) | set(self.s.pending) == set(self.live)

    @invariant()
    def counters_grow(self) -> None:
        prefix = self.s.kv.prefix
        found = (0, 0) if prefix is None else (prefix.queries, prefix.hits)
        now = (self.s.num_preemptions, *found)
        assert all(a <= b for a, b in zip(self.counters, now, strict=True))
        assert now[2] <= now[1]
        self.counters = now

    def teardown(self) -> None:
        if not hasattr(self, "s"):
            return
        self.compile_grammars()
        for _ in range(5000):
            if not self.s.has_unfinished:
                break
            self.one_step()
        assert not self.live
        assert self.s.kv.pool.num_used == 0


TestSchedulerWalk = SchedulerMachine.TestCase
TestSchedulerWalk.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)
