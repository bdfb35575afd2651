"""A request inside the engine."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from inferir.runtime.detokenizer import Detokenizer
from inferir.runtime.kv.cache import SequenceBlocks
from inferir.runtime.sampling import SamplingParams


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way from `computed` tokens to all of its tokens, and then one more per step.

    computed: leading tokens whose keys and values are in the cache. max_total: tokens, prompt included, at which it
    ends. seed: the 32-bit seed of its draws. row: its row in the input batch while it runs, else -1.
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
    preemptions: int = 0
    arrival: float = field(default_factory=time.monotonic)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)

    @property
    def remaining(self) -> int:
        """Tokens not computed yet; 1 while decoding."""
        return len(self.prompt) + len(self.outputs) - self.computed
