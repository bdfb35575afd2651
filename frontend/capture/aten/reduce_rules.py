"""Import rules of reductions and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inferir.frontend.capture.import_rules import rule
from inferir.frontend.capture.importer import Importer, Imports
from inferir.ir.graph.graph import Value


def _axes(x: Value, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(d - x.type.rank if d >= 0 else d for d in (dims or range(x.type.rank)))


def _reduction(name: str) -> Any:
    def import_reduction(
        imp: Importer, x: Imports, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
    ) -> Imports:
        value = imp.value(x, imp.val.dtype)
        return imp.op(f"tensor.{name}", value, dims=_axes(value, dim), keepdim=bool(keepdim))

    return import_reduction


for _name, _targets in {
    "sum": ("aten.sum.dim_IntList", "aten.sum.default"),
    "mean": ("aten.mean.dim", "aten.mean.default"),
    "max": ("aten.amax.default",),
    "min": ("aten.amin.default",),
}.items():
    rule(*_targets)(_reduction(_name))


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


def _opmath(dtype: torch.dtype) -> torch.dtype:
    """The type PyTorch computes in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


@rule("aten.rms_norm.default")
def _rms_norm(
    imp: Importer, x: Imports, shape: Sequence[int], weight: Imports = None, eps: float | None = None
) -> Imports:
    value = imp.value(x)
    _last_axis_only(imp, value, shape)
    eps = float(torch.finfo(_opmath(imp.val.dtype)).eps) if eps is None else float(eps)
    operands = [value] if weight is None else [value, imp.value(weight)]
    return imp.op("nn.rms_norm", *operands, eps=eps, offset=0.0, round_before_weight=False)
