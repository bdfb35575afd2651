"""layout: how weights lie in memory, and what is known of them. Evaluated as an artifact is written, not in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.registry import OpDef, define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import ceil_div, need

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
        result_names=("packed",),
        doc="A weight [N, K] in blocks of `block` outputs with `kpack` consecutive K together. With interleave P the P "
        "equal parts of N alternate in groups of 16 columns, so that one block holds what a gated activation needs.",
    )
)

SCREEN_PACK = 4
"""Consecutive K of a screening weight that lie together."""

_LEVELS = 127
_TINY, _HUGE = 1e-30, 1e9  # sizes between which no bound over- or underflows
_ROWS_AT_ONCE = 8192  # bounds the memory of float32 copies
_FLOAT_STEP = 2.0**-24  # the largest relative error of one float32 rounding
_NORM_SLACK = 1 + 2.0**-14  # more than float32 norms are off


def _screen_type(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (w,) = types
    block, valid = attrs["block"], attrs["valid"]
    need(w.rank == 2 and isinstance(w.shape[0], int) and isinstance(w.shape[1], int), f"screening of {w}")
    n, k = int(w.shape[0]), int(w.shape[1])
    need(k % SCREEN_PACK == 0, f"K = {k} is not a multiple of {SCREEN_PACK}")
    need(0 < valid <= n, f"valid = {valid} of {n}")
    blocks = ceil_div(n, block)
    return (
        TensorType((blocks, k // SCREEN_PACK, block, SCREEN_PACK), DType.U8),
        TensorType((blocks, 4, block), DType.F32),
        TensorType((2, k), DType.F32),
    )


def _columns(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of the usual rows of w [N, K], and powers of two, each about the root of one over a column's spread."""
    import torch

    total, square = torch.zeros(2, w.shape[1], dtype=torch.float64)
    count = 0
    for rows in (w[i : i + _ROWS_AT_ONCE].float() for i in range(0, len(w), _ROWS_AT_ONCE)):
        rows = rows[(rows.abs() < _HUGE).all(1)]
        total, square, count = total + rows.sum(0), square + (rows * rows).sum(0), count + len(rows)
    mean = total / max(count, 1)
    spread = (square / max(count, 1) - mean.square()).clamp(min=0)
    exponent = (spread.log2() / -4).round().clamp(-20, 20)
    return mean.float(), torch.exp2(torch.where(spread > 0, exponent, 0.0)).float()


def screen_weight(w: torch.Tensor, block: int, valid: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bytes q [blocks, K/4, block, 4], bounds [blocks, 4, block] and columns [2, K], factors f and then mean m, for a
    weight [N, K].

    With the mean m of the first `valid` rows (which moves all outputs of an x alike, so it changes no order) and
    z = f * x, for every such row v and any integers n and positive s, computed in float32 in any order:

        | x . w[v] - x . m  -  (s * scale[v] * (q[v] - 128) . n + offset[v]) |  <=  error[v] * |z| + norm[v] * |z - s n|

    by Cauchy and Schwarz, roundings of the product x . w[v] itself included. Rows from `valid` on have the offset -inf,
    rows that are huge or not finite the error inf. Factors even out the columns; they are powers of two, so z has no
    rounding.
    """
    import torch

    n, k = w.shape
    mean, factor = _columns(w[:valid])
    padded = ceil_div(n, block) * block
    q = torch.full((padded, k), _LEVELS + 1, dtype=torch.uint8)
    bounds = torch.zeros(4, padded)
    bounds[1, valid:] = float("-inf")
    for start in range(0, valid, _ROWS_AT_ONCE):
        rows = w[start : min(start + _ROWS_AT_ONCE, valid)].float()
        usual = (rows.abs() < _HUGE).all(1)
        if not bool(usual.all()):
            rows = torch.where(usual[:, None], rows, mean)
        shifted = (rows - mean) * factor
        top = shifted.abs().amax(1)
        scale = torch.where(top > _TINY, top / _LEVELS, 1.0)
        levels = (shifted / scale[:, None]).round_().clamp_(-_LEVELS, _LEVELS)
        kept = levels * scale[:, None]
        norm = kept.norm(dim=1)
        # Of x . w[v], of the product of integers, and of `shifted` and `kept` here.
        rounding = 2 * (k + 2) * (rows * factor).norm(dim=1) + 8 * norm + 4 * shifted.norm(dim=1)
        error = (shifted - kept).norm(dim=1) + _FLOAT_STEP * rounding
        part = slice(start, start + len(rows))
        q[part] = (levels + (_LEVELS + 1)).to(torch.uint8)
        bounds[0, part] = scale
        bounds[2, part] = torch.where(usual, error * _NORM_SLACK, float("inf"))
        bounds[3, part] = norm * _NORM_SLACK
    packed = q.view(-1, block, k // SCREEN_PACK, SCREEN_PACK).permute(0, 2, 1, 3).contiguous()
    return packed, bounds.view(4, -1, block).permute(1, 0, 2).contiguous(), torch.stack([1 / factor, mean])


define(
    OpDef(
        "layout.screen_weight",
        1,
        _screen_type,
        lambda attrs, w: screen_weight(w, attrs["block"], attrs["valid"]),
        attrs={"block": int, "valid": int},
        result_names=("screen", "screen_bounds", "screen_columns"),
        doc="A weight [N, K] as bytes, with bounds of what a product with them can be off: what finds the largest of N "
        "outputs while reading few of the weights themselves (`sample.argmax`).",
    )
)
