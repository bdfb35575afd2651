"""Element types of tensors."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class DType(enum.Enum):
    """An element type; the value is its spelling in IR text."""

    F64 = "f64"
    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _STORED[self][0]

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.BF16, DType.F16)

    @property
    def is_int(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    def __repr__(self) -> str:
        return f"DType.{self.name}"


_STORED = {
    DType.F64: (8, "float64"),
    DType.F32: (4, "float32"),
    DType.BF16: (2, "bfloat16"),
    DType.F16: (2, "float16"),
    DType.I64: (8, "int64"),
    DType.I32: (4, "int32"),
    DType.I16: (2, "int16"),
    DType.I8: (1, "int8"),
    DType.U8: (1, "uint8"),
    DType.BOOL: (1, "bool"),
}
"""Bytes per element, and torch's name."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype that stores `dtype` (imports torch)."""
    import torch

    out = getattr(torch, _STORED[dtype][1])
    assert isinstance(out, torch.dtype)
    return out


def from_torch(dtype: torch.dtype) -> DType:
    """The `DType` of a torch dtype. Raises `KeyError` for one the IR does not know."""
    return _FROM_TORCH[str(dtype).removeprefix("torch.")]


_FROM_TORCH = {name: dtype for dtype, (_, name) in _STORED.items()}
