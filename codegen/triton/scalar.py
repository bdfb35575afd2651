"""One Triton expression per scalar op. Floating-point values are float32 in registers, whatever their type in memory.

Functions come from libdevice and divisions are rounded correctly: row kernels wait for memory, not for arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inferir.codegen.lower.emitter import INFIX
from inferir.codegen.lower.forms import Written, forms
from inferir.codegen.lower.numbers import exponent, single
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.ir.graph.types import TensorType

# Element type of pointers (Triton's signature spelling) and of registers.
MEMORY: Mapping[DType, str] = {
    DType.F32: "fp32",
    DType.BF16: "bf16",
    DType.F16: "fp16",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U8: "u8",
    DType.BOOL: "u8",
}
REGISTER: Mapping[DType, str] = {
    DType.F32: "tl.float32",
    DType.BF16: "tl.float32",
    DType.F16: "tl.float32",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
}
HALF: Mapping[DType, str] = {DType.BF16: "tl.bfloat16", DType.F16: "tl.float16"}

_NAN = "propagate_nan=tl.PropagateNan.ALL"
_POWERS = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 0.5: "tl.sqrt_rn({0})", 1.0: "{0}"}


_FORMS: Mapping[str, str] = {
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "tl.div_rn(1.0, tl.sqrt_rn({0}))",
    "reciprocal": "tl.div_rn(1.0, {0})",
    **{name: f"libdevice.{name}({{0}})" for name in ("exp", "log", "sin", "cos", "tanh", "erf")},
    "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp(-{0}))",
    "softplus": "tl.where({0} > 20.0, {0}, libdevice.log1p(libdevice.exp({0})))",
    "logical_not": "{0} == 0",
    "div": "tl.div_rn({0}, {1})",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "where": "tl.where({0}, {1}, {2})",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in INFIX.items()},
}
"""Ops whose form does not depend on attributes or element type; {n} is operand n."""

_ON_BOOL = frozenset(["lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not", "where"])
FORMS = forms("triton_ops", "Triton form of the op")
"""Forms of other ops: (node, operands, their element type) -> the text of the result."""

OPS = Written(frozenset(f"tensor.{name}" for name in (*_FORMS, "pow", "maximum", "minimum", "relu")), FORMS)


def memory(type_: TensorType) -> str:
    """The pointer element type of a tensor. Raises `CodegenError` for one that kernels cannot hold."""
    if type_.dtype not in MEMORY:
        raise CodegenError(f"{type_.dtype.value} has no Triton form")
    return MEMORY[type_.dtype]


def literal(value: float, dtype: DType) -> str:
    """A number in registers of `dtype`."""
    if dtype is DType.BOOL:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    value = single(value)  # Triton would compute beside others, such as subnormal ones, in float64
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def elementwise(node: Node, args: Sequence[str], dtype: DType) -> str:
    """The expression of an elementwise op on operands of type `dtype`. Raises `CodegenError` for one without a form."""
    added = OPS.form(node.op)
    if added is not None:
        return added(node, args, dtype)
    op = node.op.removeprefix("tensor.")
    if (dtype is DType.BOOL and op not in _ON_BOOL) or (op == "pow" and not dtype.is_float):
        raise CodegenError(f"tensor.{op} of {dtype.value} has no Triton form")
    if op == "pow":
        form = _POWERS.get(exponent(node) or 0.0)
        return form.format(*args) if form else f"libdevice.pow({args[0]}, {args[1]})"
    if op in ("maximum", "minimum", "relu"):
        both = [args[0], "0.0" if dtype.is_float else "0"] if op == "relu" else args
        name = "minimum" if op == "minimum" else "maximum"
        return f"tl.{name}({both[0]}, {both[1]}{', ' + _NAN if dtype.is_float else ''})"
    return _FORMS[op].format(*args)
