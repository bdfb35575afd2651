"""The memory table that `compile` and `inspect` print, and its part about the KV cache, which `plan` prints as well."""

from __future__ import annotations

from typing import Any

from inferir.ir.contract.kv_groups import KVCacheGroup, plan_slabs, sequence_use
from inferir.ir.contract.manifest import Manifest
from inferir.ir.contract.symbols import Limits
from inferir.ir.system.quantities import size

Rows = list[tuple[str, str, str]]


def memory_rows(manifest: Manifest) -> Rows:
    """Rows (what, bytes for people, how it scales)."""
    memory = manifest.memory
    return [
        ("weights", size(memory.weight_bytes), "shared by processes that map the same artifact"),
        ("arena", size(memory.arena_bytes), "intermediate values, once"),
        ("scratch", size(memory.scratch_bytes), "per compute thread"),
        *kv_rows(manifest.kv, manifest.limits),
    ]


def kv_rows(groups: tuple[KVCacheGroup, ...], limits: Limits) -> Rows:
    """Rows about the KV cache: a block, and what a sequence keeps, in all and by kind of cache."""
    found = kv_json(groups, limits)
    block, token = found["kv_bytes_per_block"], found["kv_bytes_per_token"]
    sequence = f"for one sequence of {limits.max_model_len:,} tokens"
    rows = [
        ("KV cache", size(block), f"per block of {limits.block_size} tokens"),
        (
            "",
            size(token),
            "per token" if all(g.spec.reads.reach is None for g in groups) else "per token within all windows",
        ),
        ("", size(found["kv_bytes_per_sequence"]), sequence),
    ]
    uses = sequence_use(groups, limits.max_model_len)
    if len(uses) > 1:
        rows += [("", size(u.nbytes), f"of which {u.layers} layers, {u.spec.text}") for u in uses]
    return rows


def kv_json(groups: tuple[KVCacheGroup, ...], limits: Limits) -> dict[str, Any]:
    """The same in bytes. A token takes that of every group until it lies behind the group's window."""
    block, uses = plan_slabs(groups).block_bytes, sequence_use(groups, limits.max_model_len)
    return {
        "kv_bytes_per_block": block,
        "kv_bytes_per_token": len(groups) * block // limits.block_size,
        "kv_bytes_per_sequence": sum(u.nbytes for u in uses),
        "tokens_per_block": limits.block_size,
        "kv": [
            {
                "kind": u.spec.kind,
                "reads": str(u.spec.reads),
                "reach": u.spec.reads.reach,
                "layers": u.layers,
                "groups": u.groups,
                "bytes_per_sequence": u.nbytes,
            }
            for u in uses
        ],
    }


def memory_json(manifest: Manifest) -> dict[str, Any]:
    memory = manifest.memory
    return {
        "weight_bytes": memory.weight_bytes,
        "arena_bytes": memory.arena_bytes,
        "scratch_bytes_per_thread": memory.scratch_bytes,
        **kv_json(manifest.kv, manifest.limits),
    }
