"""half_panels: float32 weights as bfloat16, in blocks like Inferir's `panels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import ceil_div, need
from inferir.ir.weight_blocks import BLOCK, from_blocks, to_blocks
from inferir.ir.weight_format import WeightFormat

if TYPE_CHECKING:
    import torch


class HalfPanels(WeightFormat):
    """values [ceil(N/64), K, 64, 1] in bf16, of a weight in f32."""

    name: ClassVar[str] = "half_panels"
    roles: ClassVar[tuple[str, ...]] = ("values",)
    doc: ClassVar[str] = "A weight [N, K] of float32 rounded to bfloat16, in blocks of 64 outputs, K in order."

    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        need(w.rank == 2 and all(isinstance(d, int) for d in w.shape), f"packing of {w}")
        need(w.dtype is DType.F32, f"{w} is not float32")
        return (TensorType((ceil_div(w.shape[0], BLOCK), w.shape[1], BLOCK, 1), DType.BF16),)

    def pack(self, w: torch.Tensor, options: Attrs) -> tuple[torch.Tensor, ...]:
        return (to_blocks(w.bfloat16(), 1),)

    def unpack(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        return from_blocks(stored[0], n).float()

    def error(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        return from_blocks(stored[0], n).float().abs() / 256  # half a place of the 8 bits that bf16 has


FORMAT = HalfPanels()
