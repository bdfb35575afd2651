"""tensor: other shapes of the same elements, and sources of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import axis, ceil_div, need, torch_module

if TYPE_CHECKING:
    import torch

DIM = (int, sympy.Expr)


def _view(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    out = TensorType(attrs["shape"], types[0].dtype)
    old, new = types[0].numel, out.numel
    need(old == new or sympy.expand(old - new) == 0, f"view to {out} changes the number of elements")
    return out


define(
    "tensor.view",
    1,
    _view,
    lambda attrs, x: x.reshape(attrs["shape"]),
    attrs={"shape": tuple},
    quiet=True,
    view=True,
    moves=True,
    doc="Row-major reshape.",
)


def _permute(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    perm = attrs["perm"]
    need(sorted(perm) == list(range(types[0].rank)), f"{perm} is not a permutation of rank {types[0].rank}")
    return TensorType(tuple(types[0].shape[p] for p in perm), types[0].dtype)


define(
    "tensor.permute",
    1,
    _permute,
    lambda attrs, x: x.permute(attrs["perm"]),
    attrs={"perm": tuple},
    view=True,
    moves=True,
)


def _expand(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    shape = attrs["shape"]
    need(len(shape) >= types[0].rank, "expand lowers the rank")
    for have, want in zip(reversed(types[0].shape), reversed(shape), strict=False):
        need(have == 1 or have == want, f"cannot expand {types[0]} to {shape}")
    return TensorType(shape, types[0].dtype)


define(
    "tensor.expand",
    1,
    _expand,
    lambda attrs, x: x.expand(attrs["shape"]),
    attrs={"shape": tuple},
    quiet=True,
    view=True,
    moves=True,
)


def _slice(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    i = axis(attrs["dim"], types[0].rank)
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    need(step >= 1, f"step {step} is not positive")
    size = types[0].shape[i]
    if isinstance(start, int) and isinstance(stop, int):
        need(0 <= start <= stop and (not isinstance(size, int) or stop <= size), f"[{start}:{stop}] is outside {size}")
    return TensorType(
        tuple(ceil_div(stop - start, step) if j == i else d for j, d in enumerate(types[0].shape)), types[0].dtype
    )


def _slice_eval(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    index = [slice(None)] * x.dim()
    index[axis(attrs["dim"], x.dim())] = slice(attrs["start"], attrs["stop"], attrs["step"])
    return x[tuple(index)]


define(
    "tensor.slice",
    1,
    _slice,
    _slice_eval,
    attrs={"dim": int, "start": DIM, "stop": DIM, "step": int},
    defaults={"step": 1},
    view=True,
    moves=True,
    doc="x[..., start:stop:step, ...]; bounds are non-negative and not beyond the size.",
)


def _cat(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    i = axis(attrs["dim"], types[0].rank)
    total: Dim = 0
    for t in types:
        need(t.dtype is types[0].dtype and t.rank == types[0].rank, f"{t} beside {types[0]}")
        need(
            all(j == i or a == b for j, (a, b) in enumerate(zip(t.shape, types[0].shape, strict=True))),
            f"{t} beside {types[0]}",
        )
        total = total + t.shape[i]
    return TensorType(tuple(total if j == i else d for j, d in enumerate(types[0].shape)), types[0].dtype)


define(
    "tensor.cat",
    (1, None),
    _cat,
    lambda attrs, *xs: torch_module().cat(xs, attrs["dim"]),
    attrs={"dim": int},
    moves=True,
)


def _arange(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType((ceil_div(attrs["stop"] - attrs["start"], attrs["step"]),), attrs["dtype"])


define(
    "tensor.arange",
    0,
    _arange,
    lambda attrs: torch_module().arange(
        attrs["start"], attrs["stop"], attrs["step"], dtype=torch_dtype(attrs["dtype"])
    ),
    attrs={"start": DIM, "stop": DIM, "step": int, "dtype": DType},
    defaults={"start": 0, "step": 1},
)
define(
    "tensor.full",
    0,
    lambda types, attrs: TensorType(attrs["shape"], attrs["dtype"]),
    lambda attrs: torch_module().full(attrs["shape"], _number(attrs["value"]), dtype=torch_dtype(attrs["dtype"])),
    attrs={"shape": tuple, "value": (bool, int, float), "dtype": DType},
)


def _number(value: float) -> float:
    if isinstance(value, float) and math.isnan(value):
        raise IRError("tensor.full with NaN")
    return value
