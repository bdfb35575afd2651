"""Tensor types: a shape of static or symbolic dimensions and an element type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferir.ir.graph.dims import Dim, as_dim, dim_str, numel, substitute
from inferir.ir.graph.dtypes import DType


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type of an SSA value: `shape` (row-major, outermost first) and `dtype`."""

    shape: tuple[Dim, ...]
    dtype: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(as_dim(d) for d in self.shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        return numel(self.shape)

    def concrete(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with every symbol replaced by its value."""
        return tuple(substitute(d, values) for d in self.shape)

    def nbytes(self, values: Mapping[str, int]) -> int:
        """Bytes of a densely stored tensor under symbol values."""
        out = self.dtype.itemsize
        for dim in self.concrete(values):
            out *= dim
        return out

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(dim_str(d) for d in self.shape)}]"
