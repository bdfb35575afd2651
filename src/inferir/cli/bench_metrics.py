"""Numbers of `inferir bench`: distributions, and what a load of streamed requests amounts to."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferir.ir.errors import InferirError

METRICS = ("ttft", "tpot", "itl", "e2e")


@dataclass
class Record:
    """One request: seconds on one clock when it was sent and when each token came, or why it failed.

    `prompt_tokens` and `usage` (of the answer) are as the server counts them. `unreachable`: no connection was made.
    """

    sent: float
    prompt_tokens: int = 0
    tokens: list[float] = field(default_factory=list)
    usage: int | None = None
    ended: float = 0.0
    error: str | None = None
    unreachable: bool = False

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.sent

    @property
    def e2e(self) -> float:
        """Seconds to the last token."""
        return self.tokens[-1] - self.sent

    @property
    def itl(self) -> list[float]:
        """Seconds between tokens that follow each other."""
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None if there is only one."""
        count = len(self.tokens) - 1
        return (self.tokens[-1] - self.tokens[0]) / count if count else None


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles of values, interpolated between neighbours; p50 is the median. `values` is not empty."""
    percentiles = {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 99)}
    return {"mean": math.fsum(values) / len(values), **percentiles}


def samples(records: Sequence[Record]) -> dict[str, list[float]]:
    """Milliseconds of each metric over the requests that succeeded."""
    good = [r for r in records if r.error is None]
    seconds = {
        "ttft": [r.ttft for r in good],
        "tpot": [r.tpot for r in good if r.tpot is not None],
        "itl": [gap for r in good for gap in r.itl],
        "e2e": [r.e2e for r in good],
    }
    return {name: [1000 * s for s in listed] for name, listed in seconds.items()}


def load_summary(records: Sequence[Record], goals: Mapping[str, float]) -> dict[str, Any]:
    """What a load amounts to. Times are in milliseconds, rates per second of the time from the first request sent to
    the last that ended.

    Only requests without an error count. `goals`: milliseconds per metric that a request has to meet to be counted in
    `goodput`, which is None without goals.
    """
    good = [r for r in records if r.error is None]
    sent = [r for r in records if not r.unreachable]
    duration = max(r.ended for r in sent) - min(r.sent for r in sent)
    prompt, output = sum(r.prompt_tokens for r in good), sum(len(r.tokens) for r in good)
    return {
        "completed": len(good),
        "failed": len(records) - len(good),
        "errors": dict(Counter(r.error for r in records if r.error is not None)),
        "duration_s": duration,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "request_throughput": len(good) / duration,
        "output_throughput": output / duration,
        "total_throughput": (prompt + output) / duration,
        "goodput": sum(meets(r, goals) for r in good) / duration if goals else None,
        **{f"{name}_ms": distribution(v) if v else None for name, v in samples(records).items()},
    }


def meets(record: Record, goals: Mapping[str, float]) -> bool:
    """Whether a request is within all goals (milliseconds). A metric that it does not have cannot miss one."""
    values = {"ttft": record.ttft, "tpot": record.tpot, "e2e": record.e2e}
    return all((value := values[name]) is None or 1000 * value <= goal for name, goal in goals.items())


def parse_goals(texts: Sequence[str]) -> dict[str, float]:
    """Goals of texts such as "ttft:200 tpot:50", in milliseconds. Raises `InferirError`."""
    goals = {}
    for text in " ".join(texts).split():
        name, _, number = text.partition(":")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name not in ("ttft", "tpot", "e2e") or not 0 < value < math.inf:
            raise InferirError(f"--goodput: {text!r} is not a goal; give ttft:MS, tpot:MS or e2e:MS")
        goals[name] = value
    return goals


def random_prompts(seed: int, count: int, length: int, vocab: int, prefix: int = 0) -> list[list[int]]:
    """`count` prompts of `prefix` token ids that all share and `length` of their own, below `vocab`.

    The same arguments give the same prompts.
    """
    source = random.Random(seed)
    shared = [source.randrange(vocab) for _ in range(prefix)]
    return [shared + [source.randrange(vocab) for _ in range(length)] for _ in range(count)]
