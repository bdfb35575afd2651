"""Which requests advance by how many tokens in the next step. Knows no device and no text.

There are no prefill and decode phases: every request has computed tokens and wanted tokens, and the scheduler moves
the first towards the second under a token budget, a budget of logit rows and a block budget.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from inferir.ir.errors import EngineError, QueueFullError
from inferir.runtime.engine.request_queue import RequestQueue
from inferir.runtime.kv.kv_cache import KVCache
from inferir.runtime.requests.request import Request, Scheduled, Status

log = logging.getLogger(__name__)

POLICIES = ("fcfs", "priority")
_WATERMARK = 0.01  # share of blocks left free on admission


@dataclass(frozen=True)
class SchedulerOptions:
    """How much a step does, and who goes first.

    max_seqs: requests at once. max_tokens: tokens per step. max_rows: logit rows per step.
    policy: "fcfs" or "priority" (lower numbers first). long_prefill:
    the most prompt tokens that one request computes per step beside others; None for no limit. max_waiting: requests
    that may queue beyond the free seats; None for no limit. shared_tokens: tokens per step while there are several
    requests, which then wait less for each other's prompts; None for max_tokens. Running requests that get a token each
    leave at least as many to prompts.
    """

    max_seqs: int
    max_tokens: int
    max_rows: int
    policy: str = "fcfs"
    long_prefill: int | None = None
    max_waiting: int | None = None
    shared_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_seqs < 1 or self.max_tokens < self.max_seqs:
            raise EngineError(
                f"a step of {self.max_tokens} tokens cannot advance {self.max_seqs} sequences; "
                "lower max_num_seqs or raise max_num_batched_tokens"
            )
        if self.policy not in POLICIES:
            raise EngineError(f"scheduling_policy={self.policy!r} must be one of {', '.join(POLICIES)}")
        if self.max_rows < self.max_seqs:
            raise EngineError(f"{self.max_rows} logit rows per step cannot serve {self.max_seqs} sequences")


@dataclass
class StepPlan:
    """What one step does, in batch order; which requests lost their place for it; which can never run."""

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, BaseException]] = field(default_factory=list)


@dataclass
class _Budget:
    tokens: int
    rows: int

    def take(self, request: Request, tokens: int) -> None:
        self.tokens -= tokens
        if tokens == 1 and request.decodes:
            self.rows -= 1
            return
        self.rows -= len(request.unscored(tokens)) + (tokens == request.remaining)


class Scheduler:
    """Running requests first, then waiting ones; whoever is last in order gives way when blocks run out.

    The order is that of arrival, or of priority and then arrival. A preempted request loses its blocks, keeps its
    tokens, goes back to its place in the queue and computes later what the prefix cache has lost of it. The first
    request can take the blocks of all others, and no request is accepted that does not fit into the whole pool, so
    every step with unfinished requests that are ready makes progress.
    """

    def __init__(self, options: SchedulerOptions, kv: KVCache) -> None:
        self.options = options
        self.kv = kv
        by_priority = options.policy == "priority"
        self.pending: dict[str, Request] = {}
        self.waiting = RequestQueue(by_priority=by_priority)
        self.running = RequestQueue(by_priority=by_priority)
        self.num_preemptions = 0
        self._orders = itertools.count()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.pending)

    @property
    def num_waiting(self) -> int:
        """Requests that are not running, those that wait for a grammar or for another request included."""
        return len(self.waiting) + len(self.pending)

    def requests(self) -> list[Request]:
        """All unfinished requests."""
        return [*self.running.values(), *self.waiting.values(), *self.pending.values()]

    def find(self, request_id: str) -> Request | None:
        return self.running.get(request_id) or self.waiting.get(request_id) or self.pending.get(request_id)

    def check_room(self, count: int) -> None:
        """Raise `QueueFullError` unless `count` more requests may be added."""
        limit = self.options.max_waiting
        seats = self.options.max_seqs - len(self.running)
        if limit is not None and self.num_waiting + count > limit + seats:
            log.debug("refused %d requests: %d wait", count, self.num_waiting)
            raise QueueFullError(
                f"{self.num_waiting} requests are waiting and max_waiting is {limit}; try again later", self.num_waiting
            )

    def add(self, request: Request) -> None:
        """Queue a request. Raises `EngineError` if its id is in use, `QueueFullError` if too many are waiting."""
        if self.find(request.id) is not None:
            raise EngineError(f"a request with the id {request.id!r} is already being served")
        self.check_room(1)
        request.order = next(self._orders)
        if request.grammar is None and request.leader is None:
            self.waiting.add(request)
        else:
            self.pending[request.id] = request

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and give back its blocks."""
        self.running.pop(request.id)
        self.waiting.pop(request.id)
        self.pending.pop(request.id, None)
        self.kv.free(request.blocks)
        request.leader = None
        request.status = Status.FINISHED

    def schedule(self) -> StepPlan:
        """The next step. Requests in it have blocks for all the tokens they compute."""
        plan = StepPlan()
        self._wake(plan)
        if self.options.policy == "priority":
            self._yield_to_first(plan)
        yielded = len(plan.preempted)
        budget = _Budget(self._step_tokens(), self.options.max_rows)
        self._advance_running(plan, budget)
        if len(plan.preempted) == yielded:
            self._admit_waiting(plan, budget)
        return plan

    def _step_tokens(self) -> int:
        """Tokens of the next step at most."""
        shared, most = self.options.shared_tokens, self.options.max_tokens
        if shared is None or len(self.running) + len(self.waiting) <= 1:
            return most
        return min(most, max(shared, 2 * len(self.running)))

    def complete(self, plan: StepPlan, accepted: Sequence[int]) -> None:
        """The step has run: of the tokens that it computed for each request, in the plan's order, the first `accepted`
        stand, and blocks that those filled may be found by others.
        """
        for (request, _), count in zip(plan.scheduled, accepted, strict=True):
            request.computed += count
            full = min(request.computed, request.num_tokens) // self.kv.block_size
            if request.hashes is not None and full > request.committed:
                hashes = request.hashes.upto(full, request.tokens)
                self.kv.commit(request.blocks, hashes, request.committed, full)
                request.committed = full

    def _wake(self, plan: StepPlan) -> None:
        """Queue the requests that no longer wait for something."""
        for request in [r for r in self.pending.values() if r.ready]:
            del self.pending[request.id]
            request.leader = None
            if request.grammar is not None:
                try:
                    request.matcher = request.grammar.result().new_state(request.params.stop_ids)
                except (Exception, CancelledError) as error:  # whatever it is, it ends this request only
                    plan.failed.append((request, error))
                    continue
            self.waiting.add(request)

    def _yield_to_first(self, plan: StepPlan) -> None:
        """Preempt requests of worse priority, the worst first, if that lets the first waiting one run."""
        if not self.waiting:
            return
        first = self.waiting.first
        worse = [r for r in self.running.values() if r.priority > first.priority]
        rest = [r for r in self.running.values() if r.priority <= first.priority]
        if not worse or len(rest) >= self.options.max_seqs:
            return
        if rest and not self._fits(first, self._demands(rest), self._freed(worse)):
            return
        while worse and (len(self.running) >= self.options.max_seqs or not self._fits(first, self._demands())):
            self._preempt(worse.pop(), plan)

    def _freed(self, requests: list[Request]) -> int:
        """Blocks that only `requests` hold."""
        pool = self.kv.pool
        return sum(pool.refs(b) == 1 for r in requests for t in r.blocks for b in t.ids[t.first :])

    def _advance_running(self, plan: StepPlan, budget: _Budget) -> None:
        """Schedule running requests; each leaves at least one token and one row to each that follows it."""
        behind = len(self.running) + self._expects_better()
        for request in self.running.values():
            if request.status is not Status.RUNNING:
                break  # preempted in this step, as is everything behind it
            behind -= 1
            tokens = 1 if request.decodes else self._tokens(request, budget, behind)
            if not self._make_room(request, tokens, plan):
                break
            plan.scheduled.append(Scheduled(request, tokens))
            budget.take(request, tokens)

    def _expects_better(self) -> bool:
        """Whether a place in the step is kept for a waiting request of better priority than a running one."""
        if self.options.policy != "priority" or not self.waiting or not self.running:
            return False
        seat = len(self.running) < self.options.max_seqs
        return seat and self.waiting.first.priority < self.running.last.priority

    def _tokens(self, request: Request, budget: _Budget, behind: int) -> int:
        """How many tokens `request` may compute if `behind` others shall still get a token and a row each."""
        tokens = min(request.remaining, budget.tokens - behind)
        limit = self.options.long_prefill
        if limit is not None and len(self.running) + len(self.waiting) > 1:
            tokens = min(tokens, limit)
        if wanted := request.unscored(tokens):
            tokens = min(tokens, wanted.start - request.computed + budget.rows - behind)
        return tokens

    def _make_room(self, request: Request, tokens: int, plan: StepPlan) -> bool:
        """Reserve blocks, preempting from the back; False if `request` itself had to give way."""
        while not self.kv.reserve(request.blocks, request.computed, request.computed + tokens):
            victim = self.running.last
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        self.running.pop(request.id)
        self._detach(request)
        request.preemptions += 1
        request.status = Status.WAITING
        self.num_preemptions += 1
        if log.isEnabledFor(logging.DEBUG):
            free, most = self.kv.pool.num_free, self.kv.pool.num_blocks - 1
            log.debug("preempted %s: %d of %d KV blocks are free", request.id, free, most)
        self.waiting.add(request)
        plan.preempted.append(request)

    def _admit_waiting(self, plan: StepPlan, budget: _Budget) -> None:
        if not self.waiting:
            return
        demands = self._demands()
        while self.waiting and budget.tokens > 0 and budget.rows > 0 and len(self.running) < self.options.max_seqs:
            request = self.waiting.first
            if request in plan.preempted:
                break
            self._attach(request)
            tokens = self._tokens(request, budget, 0)
            if not self._fits(request, demands) or not self.kv.reserve(
                request.blocks, request.computed, request.computed + tokens
            ):
                self._detach(request)
                break
            self._count_hit(request)
            self.waiting.pop(request.id)
            request.status = Status.RUNNING
            self.running.add(request)
            plan.scheduled.append(Scheduled(request, tokens))
            budget.take(request, tokens)
            demands += self._demand(request)

    def _attach(self, request: Request) -> None:
        """Start from what the cache holds. The last token is always computed, since its logits are needed."""
        if request.hashes is None or request.unscored(len(request.prompt)):
            return
        full = (request.num_tokens - 1) // self.kv.block_size
        hashes = request.hashes.upto(full, request.tokens)[:full]
        request.computed = self.kv.attach(request.blocks, hashes)
        request.committed = request.computed // self.kv.block_size

    def _detach(self, request: Request) -> None:
        self.kv.free(request.blocks)
        request.computed = request.committed = 0

    def _count_hit(self, request: Request) -> None:
        if self.kv.prefix is not None and request.hashes is not None and request.preemptions == 0:
            request.cached_tokens = request.computed
            self.kv.prefix.queries += len(request.prompt)
            self.kv.prefix.hits += request.computed

    def _fits(self, request: Request, demands: int, freed: int = 0) -> bool:
        """Whether all of the request's tokens fit beside the `demands` of running ones, with `freed` blocks more."""
        if not self.running:
            return True
        pool = self.kv.pool
        demands += self._demand(request) + int(pool.num_blocks * _WATERMARK)
        return demands <= pool.num_free + freed

    def _demands(self, requests: list[Request] | None = None) -> int:
        """Blocks that `requests`, by default the running ones, still have to take."""
        return sum(self._demand(r) for r in (self.running.values() if requests is None else requests))

    def _demand(self, request: Request) -> int:
        return self.kv.demand(request.blocks, request.num_tokens, self.options.max_tokens)
