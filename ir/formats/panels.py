"""panels: numbers as they are, in blocks of outputs; those of 16 bits in pairs of K, for dot products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import ceil_div, need
from inferir.ir.weight_blocks import BLOCK, LANES, from_blocks, to_blocks
from inferir.ir.weight_format import WeightFormat

if TYPE_CHECKING:
    import torch


def _together(itemsize: int) -> int:
    """Consecutive K that lie together."""
    return 2 if itemsize == 2 else 1


class Panels(WeightFormat):
    """values [ceil(N/64), K/p, 64, p] with p = 2 for 16-bit types, else 1."""

    name: ClassVar[str] = "panels"
    roles: ClassVar[tuple[str, ...]] = ("values",)
    options: ClassVar[dict[str, Any]] = {"interleave": int}
    defaults: ClassVar[dict[str, Any]] = {"interleave": 1}
    doc: ClassVar[str] = (
        "A weight [N, K] in blocks of 64 outputs, K in order, two K of a 16-bit type together. With interleave P the P "
        "equal parts of N alternate in groups of 16 outputs, so that one block holds what a gated activation needs."
    )

    def types(self, w: TensorType, options: Attrs) -> tuple[TensorType, ...]:
        together, parts = _together(w.dtype.itemsize), options["interleave"]
        need(w.rank == 2 and isinstance(w.shape[0], int) and isinstance(w.shape[1], int), f"packing of {w}")
        n, k = int(w.shape[0]), int(w.shape[1])
        need(k % together == 0, f"K = {k} is not a multiple of {together}")
        need(BLOCK % (LANES * parts) == 0, f"a block has no {parts} parts")
        need(n % parts == 0, f"N = {n} is not a multiple of {parts}")
        return (TensorType((ceil_div(n, BLOCK), k // together, BLOCK, together), w.dtype),)

    def pack(self, w: torch.Tensor, options: Attrs) -> tuple[torch.Tensor, ...]:
        return (to_blocks(w, _together(w.element_size()), options["interleave"]),)

    def unpack(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        return from_blocks(stored[0], n, interleave)

    def error(self, stored: Sequence[torch.Tensor], n: int, interleave: int = 1) -> torch.Tensor:
        import torch

        return torch.zeros(())


FORMAT = Panels()
