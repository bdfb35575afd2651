"""int8_rows: a byte per number, symmetric with a scale per row, around the mean row and with columns evened out.

What is lost is bounded per row, for whoever wants to know of a product what it can be at most: the arg-max over the
outputs of the last matrix (`sample.argmax`) is found with it while few of the weights themselves are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import ceil_div, need
from inferir.ir.weight_blocks import BLOCK, from_blocks, to_blocks
from inferir.ir.weight_format import WeightFormat

if TYPE_CHECKING:
    import torch

TOGETHER = 4
"""Consecutive K that lie together."""

_LEVELS = 127
_ZERO = _LEVELS + 1  # what a stored byte is for the number 0
_TINY, _HUGE = 1e-30, 1e9  # sizes between which no bound over- or underflows
_ROWS_AT_ONCE = 8192  # bounds the memory of float32 copies
_FLOAT_STEP = 2.0**-24  # the largest relative error of one float32 rounding
_NORM_SLACK = 1 + 2.0**-14  # more than float32 norms are off


class Int8Rows(WeightFormat):
    """values u8 [blocks, K/4, 64, 4], bounds f32 [blocks, 4, 64] (scale, offset, error and norm of each row) and
    columns f32 [2, K] (factors, then the mean row), for a weight [N, K].

    With the mean m of the first `valid` rows, default all (it moves all outputs of an x alike, so it changes no order),
    factors f and z = f * x, for every such row v and any integers n and positive s, computed in float32 in any order:

        | x . w[v] - x . m  -  (s * scale[v] * (values[v] - 128) . n + offset[v]) |
            <=  error[v] * |z| + norm[v] * |z - s n|

    by Cauchy and Schwarz, roundings of the product x . w[v] itself included. Rows from `valid` on have the offset -inf,
    rows that are huge or not finite the error inf. Factors even out the columns; they are powers of two, so z has no
    rounding.
    """

    name: ClassVar[str] = "int8_rows"
    roles: ClassVar[tuple[str, ...]] = ("values", "bounds", "columns")
    options: ClassVar[dict[str, Any]] = {"valid": (int, type(None))}
    defaults: ClassVar[dict[str, Any]] = {"valid": None}
    features: ClassVar[frozenset[str]] = frozenset({"avx512vnni"})
    doc: ClassVar[str] = (
        "A weight [N, K] as bytes with a scale per row, and bounds of what a product with its first `valid` rows can "
        "be off: what finds the largest of N outputs while reading few of the weights themselves (`sample.argmax`)."
    )

    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        need(w.rank == 2 and isinstance(w.shape[0], int) and isinstance(w.shape[1], int), f"packing of {w}")
        n, k = int(w.shape[0]), int(w.shape[1])
        need(k % TOGETHER == 0, f"K = {k} is not a multiple of {TOGETHER}")
        valid = n if options["valid"] is None else options["valid"]
        need(0 < valid <= n, f"valid = {valid} of {n}")
        blocks = ceil_div(n, BLOCK)
        return (
            TensorType((blocks, k // TOGETHER, BLOCK, TOGETHER), DType.U8),
            TensorType((blocks, 4, BLOCK), DType.F32),
            TensorType((2, k), DType.F32),
        )

    def pack(self, w: torch.Tensor, options: Attrs) -> tuple[torch.Tensor, ...]:
        import torch

        n, k = w.shape
        valid = n if options["valid"] is None else options["valid"]
        mean, factor = _columns(w[:valid])
        padded = -(-n // BLOCK) * BLOCK
        values = torch.full((padded, k), _ZERO, dtype=torch.uint8)
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
            values[part] = (levels + _ZERO).to(torch.uint8)
            bounds[0, part] = scale
            bounds[2, part] = torch.where(usual, error * _NORM_SLACK, float("inf"))
            bounds[3, part] = norm * _NORM_SLACK
        blocked = bounds.view(4, -1, BLOCK).permute(1, 0, 2).contiguous()
        return to_blocks(values, TOGETHER), blocked, torch.stack([1 / factor, mean])

    def unpack(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        """Rows that are huge or not finite, and those from `valid` on, stand for the mean row."""
        values, _, columns = stored
        scale = _rows(stored[1], n)[0]
        return columns[1] + (from_blocks(values, n).float() - _ZERO) * scale[:, None] * columns[0]

    def error(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        """Half a level, and roundings on the way to levels and back."""
        import torch

        scale, offset, error, _ = _rows(stored[1], n)
        step = scale[:, None] * stored[2][0]
        rounding = 8 * _FLOAT_STEP * (stored[2][1].abs() + _ZERO * step)
        known = (error < float("inf")) & (offset == 0)
        return torch.where(known[:, None], step / 2 + rounding, float("inf"))


def _rows(bounds: torch.Tensor, n: int) -> torch.Tensor:
    """bounds [blocks, 4, BLOCK] -> [4, n]."""
    return bounds.permute(1, 0, 2).reshape(4, -1)[:, :n]


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


FORMAT = Int8Rows()
