"""One Triton expression per scalar op. Floating-point values are float32 in registers, whatever their type in memory.

Functions come from libdevice and divisions are rounded correctly: row kernels wait for memory, not for arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Attrs

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


def _gelu(x: str, approximate: str) -> str:
    if approximate == "none":
        return f"0.5 * {x} * (1.0 + libdevice.erf({x} * {math.sqrt(0.5)!r}))"
    inner = f"{math.sqrt(2 / math.pi)!r} * ({x} + 0.044715 * {x} * {x} * {x})"
    return f"0.5 * {x} * (1.0 + libdevice.tanh({inner}))"


_UNARY: dict[str, Callable[[str], str]] = {
    "neg": lambda x: f"-{x}",
    "abs": lambda x: f"tl.abs({x})",
    "exp": lambda x: f"libdevice.exp({x})",
    "log": lambda x: f"libdevice.log({x})",
    "sqrt": lambda x: f"tl.sqrt_rn({x})",
    "rsqrt": lambda x: f"tl.div_rn(1.0, tl.sqrt_rn({x}))",
    "reciprocal": lambda x: f"tl.div_rn(1.0, {x})",
    "sin": lambda x: f"libdevice.sin({x})",
    "cos": lambda x: f"libdevice.cos({x})",
    "tanh": lambda x: f"libdevice.tanh({x})",
    "erf": lambda x: f"libdevice.erf({x})",
    "sigmoid": lambda x: f"tl.div_rn(1.0, 1.0 + libdevice.exp(-{x}))",
    "silu": lambda x: f"tl.div_rn({x}, 1.0 + libdevice.exp(-{x}))",
    "softplus": lambda x: f"tl.where({x} > 20.0, {x}, libdevice.log1p(libdevice.exp({x})))",
    "logical_not": lambda x: f"{x} == 0",
}
_BINARY: dict[str, Callable[[str, str], str]] = {
    "add": lambda a, b: f"{a} + {b}",
    "sub": lambda a, b: f"{a} - {b}",
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"tl.div_rn({a}, {b})",
    "lt": lambda a, b: f"{a} < {b}",
    "le": lambda a, b: f"{a} <= {b}",
    "gt": lambda a, b: f"{a} > {b}",
    "ge": lambda a, b: f"{a} >= {b}",
    "eq": lambda a, b: f"{a} == {b}",
    "ne": lambda a, b: f"{a} != {b}",
    "logical_and": lambda a, b: f"({a} != 0) & ({b} != 0)",
    "logical_or": lambda a, b: f"({a} != 0) | ({b} != 0)",
}
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
SELECTIONS = frozenset({"maximum", "minimum", "relu", "where", "neg", "abs"})  # results need no rounding
_ON_BOOL = COMPARISONS | {"logical_and", "logical_or", "logical_not", "where"}


def literal(value: float, dtype: DType, rounded: bool = False) -> str:
    """A number that meets values of type `dtype`; `rounded` to it, or in the precision of registers."""
    if dtype is DType.BOOL:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if rounded and dtype in HALF:
        import torch

        from inferir.ir.graph.dtypes import torch_dtype

        number = torch.tensor(number, dtype=torch_dtype(dtype)).item()
    if math.isnan(number):
        raise CodegenError("a NaN constant has no form in a kernel")
    return f'float("{number}")' if math.isinf(number) else repr(number)


def elementwise(op: str, args: Sequence[str], attrs: Attrs, dtype: DType) -> str:
    """The expression of `tensor.<op>`; `dtype` is the element type of the operands.

    Raises `CodegenError` naming an op without a form.
    """
    if dtype is DType.BOOL and op not in _ON_BOOL:
        raise CodegenError(f"tensor.{op} of bool has no Triton form")
    if op in _UNARY:
        return _UNARY[op](args[0])
    if op in _BINARY:
        return _BINARY[op](args[0], args[1])
    if op in ("maximum", "minimum"):
        return f"tl.{op}({args[0]}, {args[1]}{', ' + _NAN if dtype.is_float else ''})"
    if op == "relu":
        return elementwise("maximum", [args[0], "0.0" if dtype.is_float else "0"], attrs, dtype)
    if op == "where":
        return f"tl.where({', '.join(args)})"
    if op == "gelu":
        return _gelu(args[0], attrs["approximate"])
    if op == "pow" and dtype.is_float:
        return f"libdevice.pow({args[0]}, {args[1]})"
    raise CodegenError(f"tensor.{op} of {dtype.value} has no Triton form")


def power(x: str, exponent: float) -> str | None:
    """x to a constant exponent by exact operations, where there is such a form."""
    forms = {2.0: f"{x} * {x}", 3.0: f"{x} * {x} * {x}", 0.5: f"tl.sqrt_rn({x})", 1.0: x}
    return forms.get(float(exponent))
