"""Type rules shared by op definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import Dim, as_dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.types import TensorType


def torch_module() -> Any:
    """torch, which is imported only where a reference implementation runs."""
    import torch

    return torch


def broadcast(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """NumPy broadcasting over symbolic shapes. Raises `IRError` when two dimensions differ and neither is 1."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if out[i] == 1:
                out[i] = dim
            elif dim != 1 and dim != out[i]:
                raise IRError(f"cannot broadcast {shapes}")
    return tuple(out)


def joint_dtype(types: Sequence[TensorType]) -> DType:
    """The common element type; a rank-0 operand (a weak scalar) takes the type of the others."""
    strong = {t.dtype for t in types if t.rank > 0}
    if not strong:
        strong = {types[0].dtype}
    if len(strong) != 1:
        raise IRError(f"mixed element types {sorted(d.value for d in strong)}; insert a cast")
    dtype = strong.pop()
    for t in types:
        if t.rank == 0 and t.dtype.is_float and not dtype.is_float:
            raise IRError(f"float scalar meets {dtype.value}; insert a cast")
    return dtype


def elementwise(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(broadcast([t.shape for t in types]), joint_dtype(types))


def real(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Results are real numbers: integers are not promoted silently."""
    out = elementwise(types, attrs)
    need(out.dtype.is_float, f"{out.dtype.value} operands; insert a cast")
    return out


def compare(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    joint_dtype(types)
    return TensorType(broadcast([t.shape for t in types]), DType.BOOL)


def same(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return types[0]


def axis(dim: int, rank: int) -> int:
    """Normalise a possibly negative axis. Raises `IRError` if out of range."""
    out = dim + rank if dim < 0 else dim
    if not 0 <= out < rank:
        raise IRError(f"axis {dim} is out of range for rank {rank}")
    return out


def need(condition: bool, message: str) -> None:
    if not condition:
        raise IRError(message)


def ceil_div(dim: Dim, by: int) -> Dim:
    if isinstance(dim, int):
        return -(-dim // by)
    return as_dim((dim + by - 1) / by)
