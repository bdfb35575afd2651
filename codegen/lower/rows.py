"""Row axes: what every backend's row-wise lowering asks of a type."""

from __future__ import annotations

from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.types import TensorType


def has_row(type_: TensorType, row: Dim) -> bool:
    """Whether the leading axis is the row axis."""
    return type_.rank > 0 and type_.shape[0] == row


def static_shape(type_: TensorType, row: Dim) -> tuple[int, ...]:
    """The feature axes of a type: all axes but a leading row axis. Raises `CodegenError` if one is symbolic."""
    dims = type_.shape[1:] if has_row(type_, row) else type_.shape
    for dim in dims:
        if not isinstance(dim, int):
            raise CodegenError(f"axis {dim} of {type_} is not static")
    return tuple(d for d in dims if isinstance(d, int))
