"""Speed as a ratio to eager's in the same run: what a busy or another machine does to both, the ratio leaves out.

With one thread each, unless more are asked for: threads that wait for one another lose far more to other work on the
machine in one library than in the other.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferir.runtime.machine import thread_count
from inferir.verify.cases import token_pool

if TYPE_CHECKING:
    from inferir.compile.compile_types import Progress
    from inferir.ir.contract.manifest import Manifest

PROMPT, NEW, PREFILL = 8, 32, 128
"""Tokens: prompt and answer of a decode round, prompt of a prefill round."""
ROUNDS, QUICK_ROUNDS = 5, 3
_REST = 0.02  # seconds in which the threads of whoever ran before fall asleep


@dataclass(frozen=True)
class Rate:
    """Tokens per second of one kind of work, round by round, of the artifact and of eager."""

    tokens: int
    artifact: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Tokens per second of the artifact and of eager."""
        return statistics.median(self.artifact), statistics.median(self.eager)

    @property
    def ratio(self) -> float:
        """The artifact's median in multiples of eager's."""
        ours, theirs = self.medians
        return ours / theirs

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio in each round, which shows how much it varies."""
        return tuple(a / b for a, b in zip(self.artifact, self.eager, strict=True))


@dataclass(frozen=True)
class Speed:
    """decode: new tokens per second of one sequence, its short prompt included in the time; prefill: prompt tokens per
    second up to the first new token. threads: those of both, the artifact's and eager's.
    """

    decode: Rate
    prefill: Rate
    threads: int


def measure_speed(
    artifact: str | os.PathLike[str], source: Any, manifest: Manifest, threads: int | None, quick: bool, say: Progress
) -> Speed:
    """Tokens per second of the artifact and of eager in the artifact's own type, with equally many threads: `threads`,
    one by default.

    In each round both do the same work one after the other; who begins changes, and a first round does not count. Both
    are in memory at once. Raises an `InferirError` for an artifact or a model that cannot be loaded.
    """
    import torch

    from inferir.api.llm import LLM, SamplingParams
    from inferir.frontend.capture.eager import eager_greedy, eager_model

    longest = manifest.limits.max_model_len - 1
    prefill, new = min(PREFILL, longest), min(NEW // 2 if quick else NEW, max(1, longest - PROMPT))
    vocabulary = range(manifest.model.vocab_size)
    (ids,) = token_pool(1, max(prefill, PROMPT), vocabulary, manifest.model.bos_token_id)
    say("speed", 0, 1)
    count, before = speed_threads(threads), torch.get_num_threads()
    model = eager_model(source, manifest.model.dtype)
    with LLM(artifact, threads=count, enable_prefix_caching=False, max_num_seqs=1) as llm:

        def answer(prompt: list[int], tokens: int) -> None:
            llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))

        work: dict[str, tuple[int, dict[str, Callable[[], object]]]] = {
            "decode": (
                new,
                {
                    "artifact": lambda: answer(ids[:PROMPT], new),
                    "eager": lambda: eager_greedy(model, ids[:PROMPT], new),
                },
            ),
            "prefill": (
                prefill,
                {"artifact": lambda: answer(ids[:prefill], 1), "eager": lambda: _first_token(model, ids[:prefill])},
            ),
        }
        torch.set_num_threads(count)
        try:
            rates = _rounds(work, QUICK_ROUNDS if quick else ROUNDS, say)
        finally:
            torch.set_num_threads(before)
    return Speed(rates["decode"], rates["prefill"], count)


def speed_threads(threads: int | None) -> int:
    """Threads with which speed is measured where `threads` are asked for. Raises `EngineError` for an absurd number."""
    return 1 if threads is None else thread_count(threads)


def _rounds(
    work: dict[str, tuple[int, dict[str, Callable[[], object]]]], rounds: int, say: Progress
) -> dict[str, Rate]:
    """The rate of each piece of work, which is given in tokens with a function for each of the two sides."""
    found: dict[str, dict[str, list[float]]] = {name: {"artifact": [], "eager": []} for name in work}
    for number in range(rounds + 1):
        for name, (tokens, sides) in work.items():
            for side in ("artifact", "eager") if number % 2 else ("eager", "artifact"):
                time.sleep(_REST)
                start = time.perf_counter()
                sides[side]()
                if number:
                    found[name][side].append(tokens / (time.perf_counter() - start))
        say("speed", number, rounds)
    return {name: Rate(work[name][0], tuple(rates["artifact"]), tuple(rates["eager"])) for name, rates in found.items()}


def _first_token(model: Any, ids: list[int]) -> int:
    """The most likely token after a prompt, computed as generation does: logits of the last position alone."""
    import inspect

    import torch

    last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=True, **last).logits
    return int(logits[0, -1].argmax())
