"""tensor: what works along axes of a tensor and lets their elements meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Value
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import axis, need, real, torch_module


def _reduced(shape: tuple[Dim, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[Dim, ...]:
    axes = {axis(d, len(shape)) for d in dims}
    need(bool(axes), "no axis to reduce")
    return tuple(1 if i in axes else d for i, d in enumerate(shape) if keepdim or i not in axes)


def _reduce(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(_reduced(types[0].shape, attrs["dims"], attrs["keepdim"]), types[0].dtype)


def _mean(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _reduce([real(types, attrs)], attrs)


def _softmax(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    axis(attrs["dim"], types[0].rank)
    return real(types, attrs)


_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": lambda x, dims, keep: x.sum(dims, keepdim=keep, dtype=x.dtype),
    "mean": lambda x, dims, keep: x.mean(dims, keepdim=keep),
    "max": lambda x, dims, keep: x.amax(dims, keepdim=keep),
    "min": lambda x, dims, keep: x.amin(dims, keepdim=keep),
}
for _name, _fn in _REDUCE.items():
    define(
        f"tensor.{_name}",
        1,
        _mean if _name == "mean" else _reduce,
        lambda attrs, x, fn=_fn: fn(x, list(attrs["dims"]), attrs["keepdim"]),
        attrs={"dims": tuple, "keepdim": bool},
        reduction=True,
    )

define(
    "tensor.argmax",
    1,
    lambda types, attrs: TensorType(_reduced(types[0].shape, (attrs["dim"],), attrs["keepdim"]), DType.I32),
    lambda attrs, x: x.argmax(attrs["dim"], keepdim=attrs["keepdim"]).to(torch_module().int32),
    attrs={"dim": int, "keepdim": bool},
    reduction=True,
    doc="Index of the first maximum.",
)


def _softmax_form(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """exp(x - max x) / Σ exp(x - max x), in float32 and rounded once."""
    (x,) = operands
    dims, dtype = (attrs["dim"],), x.type.dtype
    x = x if dtype is DType.F32 else b.op("tensor.cast", x, dtype=DType.F32)
    e = b.op("tensor.exp", b.op("tensor.sub", x, b.op("tensor.max", x, dims=dims, keepdim=True)))
    y = b.op("tensor.div", e, b.op("tensor.sum", e, dims=dims, keepdim=True))
    return y if dtype is DType.F32 else b.op("tensor.cast", y, dtype=dtype)


define(
    "tensor.softmax",
    1,
    _softmax,
    lambda attrs, x: x.softmax(attrs["dim"]),
    attrs={"dim": int},
    decompose=_softmax_form,
    reduction=True,
)
