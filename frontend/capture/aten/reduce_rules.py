"""Import rules of reductions and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from inferir.frontend.capture.importer import Importer, Imports, rule
from inferir.ir.graph.graph import Value


def _reduction(
    name: str,
    imp: Importer,
    x: Imports,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Imports:
    value = imp.value(x, imp.val.dtype)
    dims = ([dim] if isinstance(dim, int) else dim) or range(value.type.rank)
    axes = tuple(d - value.type.rank if d >= 0 else d for d in dims)
    return imp.op(f"tensor.{name}", value, dims=axes, keepdim=bool(keepdim))


for _name, _targets in {
    "sum": ("aten.sum.dim_IntList", "aten.sum.default"),
    "mean": ("aten.mean.dim", "aten.mean.default"),
    "max": ("aten.amax.default",),
    "min": ("aten.amin.default",),
}.items():
    rule(*_targets)(partial(_reduction, _name))


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
