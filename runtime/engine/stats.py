"""What an engine has done and holds, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """Gauges, then counters since the engine was made.

    waiting: requests that are not running. kv_usage: share of the blocks in use, 0 … 1. prefix_queries, prefix_hits:
    prompt tokens looked up and found in the prefix cache. computed_tokens, generated_tokens: tokens that went through
    the model, and tokens sampled. finished: requests by finish reason.
    """

    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_used: int
    kv_bytes_used: int
    kv_usage: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    steps: int
    computed_tokens: int
    generated_tokens: int
    finished: Mapping[str, int]
