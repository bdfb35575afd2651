"""layout: weights in the formats of kernels. Evaluated as an artifact is written, not in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_format import FORMATS, WeightFormat

if TYPE_CHECKING:
    import torch


def _define_packing(format: WeightFormat) -> None:
    """The op from a weight [N, K] to the tensors that the format stores of it."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        return format.types(types[0], attrs)

    def evaluate(attrs: Attrs, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return format.pack(w, attrs)

    roles = (f"{format.name}.{role}" for role in format.roles)
    define(
        format.op,
        1,
        infer,
        evaluate,
        attrs=format.options,
        defaults=format.defaults,
        result_names=tuple(roles) if len(format.roles) > 1 else (format.name,),
        doc=format.doc,
    )


for _format in FORMATS.load().values():
    _define_packing(_format)
