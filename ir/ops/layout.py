"""layout: how weights lie in memory. Evaluated when an artifact is written, never in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.ir.graph import Attrs
from inferir.ir.ops.common import ceil_div, need
from inferir.ir.registry import OpDef, define
from inferir.ir.types import TensorType

if TYPE_CHECKING:
    import torch

LANES = 16


def _interleaved(n: int, block: int, parts: int) -> list[int]:
    """Source row of every packed column; -1 for padding. Columns of a block go round the parts, 16 at a time."""
    if parts == 1:
        return [i if i < n else -1 for i in range(-(-n // block) * block)]
    size = n // parts
    out = []
    for b in range(-(-n // block)):
        for group in range(block // LANES):
            part, offset = group % parts, (b * (block // parts)) + (group // parts) * LANES
            out += [part * size + offset + i if offset + i < size else -1 for i in range(LANES)]
    return out


def _pack_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (w,) = types
    block, kpack, parts = attrs["block"], attrs["kpack"], attrs["interleave"]
    need(w.rank == 2 and isinstance(w.shape[0], int) and isinstance(w.shape[1], int), f"packing of {w}")
    n, k = int(w.shape[0]), int(w.shape[1])
    need(k % kpack == 0, f"K = {k} is not a multiple of {kpack}")
    need(block % (LANES * parts) == 0, f"block {block} is not a multiple of {LANES * parts}")
    need(n % parts == 0, f"N = {n} is not a multiple of {parts}")
    return TensorType((ceil_div(n, block), k // kpack, block, kpack), w.dtype)


def pack_weight(w: torch.Tensor, block: int, kpack: int, interleave: int) -> torch.Tensor:
    """[N, K] -> [ceil(N/block), K/kpack, block, kpack], zero rows where N does not fill a block."""
    import torch

    n, k = w.shape
    rows = torch.tensor(_interleaved(n, block, interleave))
    if bool((rows != torch.arange(len(rows))).any()):
        picked = w[rows.clamp(min=0)]
        if bool((rows < 0).any()):
            picked[rows < 0] = 0
        w = picked
    return w.view(-1, block, k // kpack, kpack).permute(0, 2, 1, 3).contiguous()


def unpack_weight(w: torch.Tensor, n: int, interleave: int) -> torch.Tensor:
    """The inverse of `pack_weight`: [N, K]."""
    import torch

    blocks, kp, block, kpack = w.shape
    flat = w.permute(0, 2, 1, 3).reshape(blocks * block, kp * kpack)
    rows = torch.tensor(_interleaved(n, block, interleave))
    out = torch.empty(n, kp * kpack, dtype=w.dtype)
    out[rows[rows >= 0]] = flat[rows >= 0]
    return out


define(
    OpDef(
        "layout.pack_weight",
        1,
        _pack_type,
        lambda attrs, w: pack_weight(w, attrs["block"], attrs["kpack"], attrs["interleave"]),
        attrs={"block": int, "kpack": int, "interleave": int},
        defaults={"interleave": 1},
        doc="A weight [N, K] in blocks of `block` outputs with `kpack` consecutive K together. With interleave P the P "
        "equal parts of N alternate in groups of 16 columns, so that one block holds what a gated activation needs.",
    )
)
