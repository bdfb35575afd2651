"""What the engine knows of the model, and its options with how they are resolved against an artifact's limits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferir.ir.contract.symbols import Limits
from inferir.ir.errors import EngineError
from inferir.runtime.engine.scheduler import SchedulerOptions

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


SHARED_TOKENS = 256
"""Tokens per step by default while there are several requests: enough for the matrix products to be efficient, and few
enough that a prompt's first token, and the next token of those that already answer, need not wait for long prompts."""


@dataclass(frozen=True)
class ModelLimits:
    """Ids 0 … vocab_size - 1, the ids that end a text, and the longest sequence."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a user may choose when an artifact is loaded; None leaves it to the artifact and the machine.

    kv_cache_memory: bytes for the KV cache, as a number or like "2GiB". max_num_seqs: requests that run at once.
    max_num_batched_tokens: tokens per step; by default the artifact's limit for a request that is alone, and
    `SHARED_TOKENS` where several wait for each other. max_model_len: tokens per request, prompt included. threads:
    compute threads. enable_prefix_caching: reuse the cache of equal beginnings. scheduling_policy: "fcfs" or
    "priority". long_prefill_tokens: prompt tokens that one request computes per step at most while there are others.
    max_waiting: requests that may queue beyond the free seats before `QueueFullError`; None for any number, as for the
    limit before.
    """

    kv_cache_memory: int | str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    threads: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    long_prefill_tokens: int | None = None
    max_waiting: int | None = None

    def model_len(self, limits: Limits) -> int:
        return _within("max_model_len", self.max_model_len, limits.max_model_len)

    def scheduler(self, limits: Limits) -> SchedulerOptions:
        """Raises `EngineError` naming the option that exceeds what the artifact was compiled for."""
        tokens = _within("max_num_batched_tokens", self.max_num_batched_tokens, limits.max_tokens)
        seqs = _within("max_num_seqs", self.max_num_seqs, min(limits.max_seqs, limits.max_rows))
        return SchedulerOptions(
            max_seqs=seqs if self.max_num_seqs else min(seqs, tokens),
            max_tokens=tokens,
            max_rows=limits.max_rows,
            policy=self.scheduling_policy,
            long_prefill=_count("long_prefill_tokens", self.long_prefill_tokens, 1),
            max_waiting=_count("max_waiting", self.max_waiting, 0),
            shared_tokens=SHARED_TOKENS if self.max_num_batched_tokens is None else None,
        )

    def kv_bytes(self) -> int | None:
        return None if self.kv_cache_memory is None else parse_bytes(self.kv_cache_memory, "kv_cache_memory")


def parse_bytes(value: int | str, option: str) -> int:
    """A size in bytes from a number or text such as "512MiB" or "2g". Raises `EngineError` naming `option`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None or float(found[1]) <= 0:
        raise EngineError(f'{option}={value!r} is not a size; give bytes or text like "512MiB" or "2GB"')
    return int(float(found[1]) * unit)


def _within(option: str, value: int | None, limit: int) -> int:
    if value is None:
        return limit
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise EngineError(f"{option}={value!r} must be from 1 to {limit}, the limit the artifact was compiled with")
    return value


def _count(option: str, value: int | None, least: int) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise EngineError(f"{option}={value!r} must be a number from {least} on")
    return value
