"""kv: writes to the paged key-value cache, as values: `kv.write` returns the cache it produced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.ir.contract.kv_specs import attention_tensor
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import NB
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import need

if TYPE_CHECKING:
    import torch


def cache_type(role: str, kv_heads: int, size: int, block_size: int, dtype: DType) -> TensorType:
    """The type of a layer's cache of keys or values: all blocks, each as `attention_tensor` says."""
    return TensorType((NB, *attention_tensor(role, kv_heads, size, block_size, dtype).shape), dtype)


def _write_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    cache, x, slots = types
    need(attrs["role"] in ("k", "v"), f"role {attrs['role']!r} is not 'k' or 'v'")
    need(x.rank == 3 and slots.rank == 1 and slots.shape[0] == x.shape[0], f"write of {x} to slots {slots}")
    want = cache_type(attrs["role"], int(x.shape[1]), int(x.shape[2]), attrs["block_size"], x.dtype)
    need(
        cache.shape[1:] == want.shape[1:] and cache.dtype is x.dtype,
        f"cache {cache} does not hold {x} as {attrs['role']}",
    )
    return cache


def _write_eval(attrs: Attrs, cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    cache = cache.clone()
    bs, p = attrs["block_size"], cache.shape[-1]
    block, offset = slots.long() // bs, slots.long() % bs
    if attrs["role"] == "k":
        cache[block, :, :, offset, :] = x.reshape(x.shape[0], x.shape[1], -1, p)
    else:
        cache[block, :, offset // p, :, offset % p] = x
    return cache


define(
    "kv.write",
    3,
    _write_type,
    _write_eval,
    attrs={"role": str, "block_size": int},
    mixes_rows=True,
    in_memory=1,
    stores=1,
    short="kv_write",
    doc="Write row t of x [T, Hk, D] to slot slots[t] = block · block_size + offset. Returns the new cache.",
)
