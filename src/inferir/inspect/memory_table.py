"""The memory table that `compile` and `inspect` print: what an artifact takes when it is served."""

from __future__ import annotations

from typing import Any

from inferir.ir.contract.manifest import Manifest
from inferir.ir.system.quantities import size


def memory_rows(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Rows (what, bytes for people, how it scales)."""
    memory, limits = manifest.memory, manifest.limits
    full = memory.kv_block_bytes * limits.bound("MB")
    return [
        ("weights", size(memory.weight_bytes), "shared by processes that map the same artifact"),
        ("arena", size(memory.arena_bytes), "intermediate values, once"),
        ("scratch", size(memory.scratch_bytes), "per compute thread"),
        ("KV cache", size(memory.kv_block_bytes), f"per block of {limits.block_size} tokens"),
        ("", size(memory.kv_block_bytes / limits.block_size), "per token"),
        ("", size(full), f"for one sequence of {limits.max_model_len:,} tokens"),
    ]


def memory_json(manifest: Manifest) -> dict[str, Any]:
    memory, limits = manifest.memory, manifest.limits
    return {
        "weight_bytes": memory.weight_bytes,
        "arena_bytes": memory.arena_bytes,
        "scratch_bytes_per_thread": memory.scratch_bytes,
        "kv_bytes_per_block": memory.kv_block_bytes,
        "kv_bytes_per_token": memory.kv_block_bytes // limits.block_size,
        "tokens_per_block": limits.block_size,
    }
