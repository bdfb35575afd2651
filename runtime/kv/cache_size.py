"""How many blocks the cache gets, decided once at start."""

from __future__ import annotations

from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs
from inferir.ir.errors import EngineError
from inferir.runtime.kv.block_pool import BlockPool
from inferir.runtime.kv.managers import manager_for
from inferir.runtime.machine import available_bytes

DEFAULT_SHARE = 0.5
"""Share of the available memory that the cache may take when no budget is given."""


def plan_blocks(
    groups: tuple[KVCacheGroup, ...],
    *,
    budget: int | None,
    max_seqs: int,
    max_model_len: int,
    step_tokens: int,
    available: int | None = None,
) -> int:
    """Number of blocks, the null block included.

    Never more than `max_seqs` sequences of `max_model_len` tokens can use; otherwise what fits into `budget` bytes, by
    default half of the memory that is available. Raises `EngineError` naming both numbers if that is less than the
    smallest cache.
    """
    if not groups:
        return 2
    block_bytes = plan_slabs(groups).block_bytes
    probe = BlockPool(2)
    per_sequence = sum(manager_for(g.spec, probe).peak(max_model_len, step_tokens) for g in groups)
    useful = 1 + max_seqs * per_sequence
    if budget is None:
        budget = int((available_bytes() if available is None else available) * DEFAULT_SHARE)
        origin = f"half of the memory that is free, {budget} bytes,"
    else:
        origin = f"kv_cache_memory of {budget} bytes"
    blocks = min(useful, budget // block_bytes)
    smallest = 1 + len(groups)
    if blocks < smallest:
        raise EngineError(
            f"{origin} is less than the smallest KV cache, {smallest} blocks of {block_bytes} bytes; "
            f"say how much it may take with --kv-cache-memory (kv_cache_memory)"
        )
    return blocks
