"""Import rules of elementwise operators, casts and operators that do nothing here."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from inferir.frontend.capture.hooks import MaskSpec
from inferir.frontend.capture.importer import Importer, Imports, rule
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Value


@rule(
    "aten.alias.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
)
def _same(imp: Importer, x: Imports, *_: Any, **__: Any) -> Imports:
    return x


@rule("aten.dropout.default")
def _dropout(imp: Importer, x: Imports, p: float, train: bool) -> Imports:
    if train and p:
        raise imp.refuse("dropout is active")
    return x


@rule("getitem")
def _getitem(imp: Importer, xs: list[Imports], index: int) -> Imports:
    return xs[index]


# --- casts ----------------------------------------------------------------------------------------------------------


@rule(
    "aten.to.dtype",
    "aten.to.device",
    "aten.to.other",
    "aten.to.dtype_layout",
    "aten._to_copy.default",
    "aten.type_as.default",
)
def _cast(imp: Importer, x: Imports, *_: Any, **__: Any) -> Imports:
    return x if isinstance(x, MaskSpec) else imp.value(x, imp.val.dtype)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _unary(name: str, imp: Importer, x: Imports) -> Imports:
    return imp.op(f"tensor.{name}", imp.value(x, imp.val.dtype))


for _name in (
    "neg",
    "exp",
    "expm1",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "abs",
    "floor",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "silu",
    "relu",
    "erf",
):
    rule(f"aten.{_name}.default")(partial(_unary, _name))


@rule("aten.gelu.default")
def _gelu(imp: Importer, x: Imports, approximate: str = "none") -> Imports:
    return imp.op("tensor.gelu", imp.value(x), approximate=approximate)


@rule("aten.softplus.default")
def _softplus(imp: Importer, x: Imports, beta: float = 1, threshold: float = 20) -> Imports:
    if beta != 1 or threshold != 20:
        raise imp.refuse(f"beta={beta}, threshold={threshold} are not supported")
    return imp.op("tensor.softplus", imp.value(x))


def _pair(imp: Importer, a: Imports, b: Imports, dtype: torch.dtype) -> tuple[Value, Value]:
    """Both operands in the promoted type; two 32-bit indices stay 32-bit, and a number never widens an index."""
    x, y = imp.value(a, dtype), imp.value(b, dtype)
    strong = {v.type.dtype for v in (x, y) if v.op != "core.scalar"}
    if strong == {DType.I32, DType.I64}:
        x, y = (v if v.type.dtype is DType.I64 else imp.op("tensor.cast", v, dtype=DType.I64) for v in (x, y))
    return x, y


def _binary(name: str, imp: Importer, a: Imports, b: Imports, alpha: float = 1) -> Imports:
    x, y = _pair(imp, a, b, imp.val.dtype)
    if alpha != 1:
        y = imp.op("tensor.mul", y, imp.scalar(alpha))
    return imp.op(f"tensor.{name}", x, y)


for _name in ("add", "sub", "mul", "div"):
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(partial(_binary, _name))
rule("aten.multiply.Tensor", "aten.multiply.Scalar")(partial(_binary, "mul"))
for _name, _short in (("maximum", "max"), ("minimum", "min")):
    rule(f"aten.{_name}.default", f"aten.{_short}.other")(partial(_binary, _name))


@rule("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(imp: Importer, a: Imports, b: Imports, alpha: float = 1) -> Imports:
    return _binary("sub", imp, b, a if alpha == 1 else imp.op("tensor.mul", imp.value(a), imp.scalar(alpha)))


def _comparison(name: str, imp: Importer, a: Imports, b: Imports) -> Imports:
    x, y = _pair(imp, a, b, torch.result_type(imp.argument(0), imp.argument(1)))
    return imp.op(f"tensor.{name}", x, y)


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(partial(_comparison, _name))


@rule("aten.pow.Tensor_Scalar")
def _pow(imp: Importer, x: Imports, exponent: float) -> Imports:
    value = imp.value(x, imp.val.dtype)
    if exponent == 2:
        return imp.op("tensor.mul", value, value)
    if exponent == 3:
        return imp.op("tensor.mul", imp.op("tensor.mul", value, value), value)
    named = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if named:
        return imp.op(f"tensor.{named}", value)
    return imp.op("tensor.pow", value, imp.scalar(exponent))


rule("aten.square.default")(partial(_pow, exponent=2))


@rule("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow_tensor(imp: Importer, x: Imports, exponent: Imports) -> Imports:
    a, b = _pair(imp, x, exponent, imp.val.dtype)
    return imp.op("tensor.pow", a, b)


@rule("aten.clamp.default", "aten.clamp_min.default")
def _clamp(imp: Importer, x: Imports, min: Imports = None, max: Imports = None) -> Imports:
    value = imp.value(x, imp.val.dtype)
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            value = imp.op(f"tensor.{name}", value, imp.value(bound))
    return value


@rule("aten.clamp_max.default")
def _clamp_max(imp: Importer, x: Imports, max: Imports) -> Imports:
    return _clamp(imp, x, None, max)


@rule("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def _where(imp: Importer, condition: Imports, a: Imports, b: Imports) -> Imports:
    chosen = imp.op("tensor.where", imp.value(condition), *_pair(imp, a, b, imp.val.dtype))
    return imp.value(chosen, imp.val.dtype)  # a choice of two numbers has no element type of its own


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(imp: Importer, x: Imports, mask: Imports, number: Imports) -> Imports:
    return imp.op("tensor.where", imp.value(mask), *_pair(imp, number, x, imp.val.dtype))


@rule("aten.logical_not.default", "aten.bitwise_not.default")
def _not(imp: Importer, x: Imports) -> Imports:
    if imp.val.dtype is not torch.bool:
        raise imp.refuse("bitwise operators are supported on bool only")
    return imp.op("tensor.logical_not", imp.value(x))


def _logical(name: str, imp: Importer, a: Imports, b: Imports) -> Imports:
    if any(isinstance(m, torch.Tensor) and m.dtype is not torch.bool for m in (imp.argument(0), imp.argument(1))):
        raise imp.refuse("logical operators are supported on bool only")
    return imp.op(f"tensor.logical_{name}", imp.value(a), imp.value(b))


for _name in ("and", "or"):
    rule(
        f"aten.logical_{_name}.default",
        f"aten.bitwise_{_name}.Tensor",
        f"aten.bitwise_{_name}.Scalar",
        f"aten.__{_name}__.Tensor",
        f"aten.__{_name}__.Scalar",
    )(partial(_logical, _name))
