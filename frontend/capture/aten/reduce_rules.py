"""Import rules of reductions and normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from inferir.frontend.capture.importer import Importer, Imports, rule
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Value


def _axes(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The axes that an operator's `dim` names, counted from the last; all if it names none."""
    dims = ([dim] if isinstance(dim, int) else dim) or range(rank)
    return tuple(d - rank if d >= 0 else d for d in dims)


def _reduction(
    name: str,
    imp: Importer,
    x: Imports,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Imports:
    value = imp.value(x, imp.val.dtype)
    return imp.op(f"tensor.{name}", value, dims=_axes(dim, value.type.rank), keepdim=bool(keepdim))


for _name, _targets in {
    "sum": ("aten.sum.dim_IntList", "aten.sum.default"),
    "mean": ("aten.mean.dim", "aten.mean.default"),
    "max": ("aten.amax.default",),
    "min": ("aten.amin.default",),
}.items():
    rule(*_targets)(partial(_reduction, _name))


def _spread(
    root: bool,
    imp: Importer,
    x: Imports,
    dim: int | Sequence[int] | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> Imports:
    """Variance or its root, in two passes and float32, rounded once: sum((x - mean)^2) / (count - correction)."""
    value = imp.value(x, imp.val.dtype)
    dtype, axes = value.type.dtype, _axes(dim, value.type.rank)
    sizes = [value.type.shape[a] for a in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise imp.refuse("a variance over tokens is not supported")
    count = math.prod(int(size) for size in sizes) - (float(unbiased) if correction is None else correction)
    if count <= 0:
        raise imp.refuse("a variance of so few numbers has no value")
    if dtype is not DType.F32:
        value = imp.op("tensor.cast", value, dtype=DType.F32)
    centred = imp.op("tensor.sub", value, imp.op("tensor.mean", value, dims=axes, keepdim=True))
    total = imp.op("tensor.sum", imp.op("tensor.mul", centred, centred), dims=axes, keepdim=bool(keepdim))
    out = imp.op("tensor.div", total, imp.scalar(float(count)))
    out = imp.op("tensor.sqrt", out) if root else out
    return out if dtype is DType.F32 else imp.op("tensor.cast", out, dtype=dtype)


def _spread_by_correction(
    root: bool, imp: Importer, x: Imports, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False
) -> Imports:
    return _spread(root, imp, x, dim, keepdim=keepdim, correction=1.0 if correction is None else float(correction))


for _name, _root in (("std", True), ("var", False)):
    rule(f"aten.{_name}.dim")(partial(_spread, _root))
    rule(f"aten.{_name}.correction")(partial(_spread_by_correction, _root))


@rule("aten.softmax.int", "aten._softmax.default")
def _softmax(imp: Importer, x: Imports, dim: int, dtype: Any = None) -> Imports:
    return imp.op("tensor.softmax", imp.value(x, imp.val.dtype), dim=dim)


def _last_axis_only(imp: Importer, x: Value, shape: Sequence[int]) -> None:
    if tuple(shape) != x.type.shape[-1:]:
        raise imp.refuse(f"normalisation over {tuple(shape)} is not over the last axis of {x.type}")


@rule("aten.layer_norm.default")
def _layer_norm(
    imp: Importer,
    x: Imports,
    shape: Sequence[int],
    weight: Imports = None,
    bias: Imports = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Imports:
    value = imp.value(x)
    _last_axis_only(imp, value, shape)
    if bias is not None and weight is None:
        raise imp.refuse("a bias without weight is not supported")
    operands = [value, *(imp.value(v) for v in (weight, bias) if v is not None)]
    return imp.op("nn.layer_norm", *operands, eps=float(eps))


@rule("aten.native_layer_norm.default")
def _native_layer_norm(
    imp: Importer, x: Imports, shape: Sequence[int], weight: Imports, bias: Imports, eps: float
) -> Imports:
    return [_layer_norm(imp, x, shape, weight, bias, eps)]


@rule("aten.rms_norm.default")
def _rms_norm(
    imp: Importer, x: Imports, shape: Sequence[int], weight: Imports = None, eps: float | None = None
) -> Imports:
    value = imp.value(x)
    _last_axis_only(imp, value, shape)
    if eps is None:  # that of the type PyTorch computes in
        eps = torch.finfo(torch.promote_types(imp.val.dtype, torch.float32)).eps
    operands = [value] if weight is None else [value, imp.value(weight)]
    return imp.op("nn.rms_norm", *operands, eps=float(eps), offset=0.0, round_before_weight=False)
