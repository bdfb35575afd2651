"""core: sources of values. None has operands, so their types are given by the builder or parser, not inferred."""

from __future__ import annotations

from collections.abc import Sequence

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType

define("core.input", 0, None, attrs={"name": str}, doc="A run-time operand.")
define("core.weight", 0, None, attrs={"name": str}, doc="A tensor by name.")
define(
    "core.scalar",
    0,
    None,
    attrs={"value": (bool, int, float)},
    doc="A rank-0 number that takes the element type of the other operand.",
)


def _constant(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    out = TensorType(attrs["shape"], attrs["dtype"])
    if out.numel != len(attrs["data"]):
        raise IRError(f"{len(attrs['data'])} numbers for shape {attrs['shape']}")
    return out


def _constant_eval(attrs: Attrs):  # type: ignore[no-untyped-def]
    import torch

    return torch.tensor(attrs["data"], dtype=torch_dtype(attrs["dtype"])).reshape(attrs["shape"])


define(
    "core.constant",
    0,
    _constant,
    _constant_eval,
    attrs={"dtype": DType, "shape": tuple, "data": tuple},
    doc="A small literal tensor; `data` in row-major order.",
)
