"""Which requests advance by how many tokens in the next step. Knows no device and no text.

There are no prefill and decode phases: every request has computed tokens and wanted tokens, and the scheduler moves
the first towards the second under a token budget and a block budget.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from inferir.ir.errors import EngineError
from inferir.runtime.kv.cache import KVCache
from inferir.runtime.request import Request, Status


@dataclass(frozen=True)
class SchedulerOptions:
    """max_seqs: requests at once; max_tokens: tokens per step; watermark: share of blocks left free on admission."""

    max_seqs: int
    max_tokens: int
    watermark: float = 0.01

    def __post_init__(self) -> None:
        if self.max_seqs < 1 or self.max_tokens < self.max_seqs:
            raise EngineError(
                f"a step of {self.max_tokens} tokens cannot advance {self.max_seqs} sequences; "
                "lower max_num_seqs or raise max_num_batched_tokens"
            )


@dataclass(frozen=True)
class Scheduled:
    """`request` computes its next `tokens` tokens."""

    request: Request
    tokens: int


@dataclass
class StepPlan:
    """What one step does, in batch order, and which requests lost their place for it."""

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class Scheduler:
    """First come, first served: running requests first, then waiting ones; the latest comer gives way when blocks run
    out.

    A preempted request loses its blocks, keeps its tokens, goes back to the head of the queue and recomputes later.
    The first running request can take the blocks of all others, and no request is accepted that does not fit into the
    whole pool, so every step with unfinished requests makes progress.
    """

    def __init__(self, options: SchedulerOptions, kv: KVCache) -> None:
        self.options = options
        self.kv = kv
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.running: OrderedDict[str, Request] = OrderedDict()
        self.num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def find(self, request_id: str) -> Request | None:
        return self.running.get(request_id) or self.waiting.get(request_id)

    def add(self, request: Request) -> None:
        """Queue a request. Raises `EngineError` if its id is in use."""
        if self.find(request.id) is not None:
            raise EngineError(f"a request with the id {request.id!r} is already being served")
        self.waiting[request.id] = request

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and give back its blocks."""
        self.running.pop(request.id, None)
        self.waiting.pop(request.id, None)
        self.kv.free(request.blocks)
        request.status = Status.FINISHED

    def schedule(self) -> StepPlan:
        """The next step. Requests in it have blocks for all the tokens they compute."""
        plan = StepPlan()
        budget = self._advance_running(plan, self.options.max_tokens)
        if not plan.preempted:
            self._admit_waiting(plan, budget)
        return plan

    def _advance_running(self, plan: StepPlan, budget: int) -> int:
        """Schedule running requests; each leaves at least one token of the budget to each that follows it."""
        behind = len(self.running)
        for request in list(self.running.values()):
            if request.status is not Status.RUNNING:
                break  # preempted in this step, as is everything behind it
            behind -= 1
            tokens = min(request.remaining, budget - behind)
            if not self._make_room(request, tokens, plan):
                break
            plan.scheduled.append(Scheduled(request, tokens))
            budget -= tokens
        return budget

    def _make_room(self, request: Request, tokens: int, plan: StepPlan) -> bool:
        """Reserve blocks, preempting from the back; False if `request` itself had to give way."""
        while not self.kv.reserve(request.blocks, request.computed, request.computed + tokens):
            victim = next(reversed(self.running.values()))
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        del self.running[request.id]
        self.kv.free(request.blocks)
        request.computed = 0
        request.preemptions += 1
        request.status = Status.WAITING
        self.num_preemptions += 1
        self.waiting[request.id] = request
        self.waiting.move_to_end(request.id, last=False)

    def _admit_waiting(self, plan: StepPlan, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.options.max_seqs:
            request = next(iter(self.waiting.values()))
            tokens = min(request.remaining, budget)
            if not self._fits(request):
                break
            if not self.kv.reserve(request.blocks, request.computed, request.computed + tokens):
                break
            del self.waiting[request.id]
            request.status = Status.RUNNING
            self.running[request.id] = request
            plan.scheduled.append(Scheduled(request, tokens))
            budget -= tokens

    def _fits(self, request: Request) -> bool:
        """Whether all of the request's tokens fit beside what the running requests still have to compute."""
        if not self.running:
            return True
        pool = self.kv.pool
        demand = self._demand(request) + sum(self._demand(r) for r in self.running.values())
        return demand + int(pool.num_blocks * self.options.watermark) <= pool.num_free

    def _demand(self, request: Request) -> int:
        return self.kv.demand(request.blocks, request.num_tokens, self.options.max_tokens)
