"""A request inside the engine, its part of a step, and what a step brings it."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from inferir.runtime.kv.kv_cache import SequenceBlocks
from inferir.runtime.kv.prefix_cache import BlockHashes
from inferir.runtime.sampling.logit_rules import LogitRules
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.runtime.sampling.token_logprobs import TokenLogprobs
from inferir.runtime.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from inferir.runtime.structured import Grammar, GrammarState


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Timing:
    """Seconds on the monotonic clock, None before the event. `scheduled` is the first time that it was."""

    arrival: float = field(default_factory=time.monotonic)
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    @property
    def queue(self) -> float | None:
        """Seconds until it was scheduled."""
        return _between(self.arrival, self.scheduled)

    @property
    def prefill(self) -> float | None:
        """Seconds from being scheduled to its first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode(self) -> float | None:
        """Seconds from its first token to its last."""
        return _between(self.first_token, self.last_token)

    @property
    def e2e(self) -> float | None:
        """Seconds from its arrival to its end."""
        return _between(self.arrival, self.finished)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way from `computed` tokens to all of its tokens, and then one more per step.

    computed: leading tokens whose keys and values are in the cache. max_total: tokens, prompt included, at which it
    ends. seed: the 32-bit seed of its draws. row: its row in the input batch while it runs, else -1. priority: lower
    numbers go first, under the policy of that name. order: its place among requests of equal priority. hashes: the hash
    chain of its blocks, None without prefix caching. committed: leading blocks that others may find. stop_ids: tokens
    that end its text. rules: what it does to its logits. cached_tokens: prompt tokens that were found in the cache when
    it was first admitted. error, internal: why it failed, and whether that is no fault of its own. grammar, leader:
    what it waits for before it is admitted: a grammar to be compiled, a request whose prompt it shares.
    prompt_logprobs: grows with the prompt's computed part if asked for; its first entry is None.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    max_total: int
    seed: int
    blocks: SequenceBlocks
    detokenizer: Detokenizer | None = None
    outputs: list[int] = field(default_factory=list)
    computed: int = 0
    row: int = -1
    status: Status = Status.WAITING
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    internal: bool = False
    preemptions: int = 0
    priority: int = 0
    cache_salt: str | None = None
    stop_ids: frozenset[int] = frozenset()
    rules: LogitRules | None = None
    order: int = -1
    hashes: BlockHashes | None = None
    committed: int = 0
    cached_tokens: int = 0
    grammar: Future[Grammar] | None = None
    matcher: GrammarState | None = None
    leader: Request | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    timing: Timing = field(default_factory=Timing)

    @property
    def token_only(self) -> bool:
        """Whether the most likely token is all that it wants of its logits."""
        params, rules = self.params, self.rules
        plain = rules is None or not (rules.edits or rules.allowed is not None)
        return params.greedy and params.logprobs is None and self.grammar is None and plain

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)

    @property
    def remaining(self) -> int:
        """Tokens not computed yet; 1 while decoding."""
        return len(self.prompt) + len(self.outputs) - self.computed

    @property
    def decodes(self) -> bool:
        """Whether its next step is one token and one row of logits."""
        return self.prompt_logprobs is None and self.remaining == 1

    @property
    def ready(self) -> bool:
        """Whether nothing that it waits for is outstanding."""
        if self.grammar is not None and not self.grammar.done():
            return False
        leader = self.leader
        return leader is None or bool(leader.outputs) or leader.status is Status.FINISHED

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Tokens at positions `start` … `stop` - 1."""
        prompt = len(self.prompt)
        if stop <= prompt:
            return self.prompt[start:stop]
        return self.prompt[start:] + self.outputs[max(0, start - prompt) : stop - prompt]

    def unscored(self, tokens: int) -> range:
        """Positions among the next `tokens` tokens after which the logits are wanted for prompt log-probabilities."""
        if self.prompt_logprobs is None:
            return range(0)
        start = max(self.computed, len(self.prompt_logprobs) - 1)
        return range(start, max(start, min(self.computed + tokens, len(self.prompt) - 1)))


class Scheduled(NamedTuple):  # one per sequence and step: made in half the time of a frozen data class
    """`request` computes its next `tokens` tokens."""

    request: Request
    tokens: int


class Update(NamedTuple):  # one per sequence and step, as `Scheduled`
    """What one step brought a request: `tokens`, the text they let go, and, with the last ones, why it ended.

    finish_reason is "stop" (end-of-sequence, stop token or stop string, named by stop_reason unless it is
    end-of-sequence), "length", "abort" or "error" (the request's `error` then says what went wrong); None means that
    the request goes on. logprobs: one for each of the tokens if the request asked for them, else empty.
    """

    request: Request
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
