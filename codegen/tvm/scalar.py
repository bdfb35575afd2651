"""One emitter per scalar op: TIR text for the op on `lanes` elements. All float math is in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import f32, splat, vtype
from inferir.ir.errors import CodegenError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType

Emit = Callable[[Sequence[str], int], str]


def _one(lanes: int) -> str:
    return f32(1.0, lanes)


def _helper(name: str) -> Emit:
    return lambda a, n: call(f"inf_{name}", n, a[0])


UNARY: dict[str, Emit] = {
    "neg": lambda a, n: f"{f32(-1.0, n)} * ({a[0]})",
    "reciprocal": lambda a, n: f"{_one(n)} / ({a[0]})",
    "silu": lambda a, n: f"({a[0]}) / ({_one(n)} + {call('inf_exp', n, f'{f32(0.0, n)} - ({a[0]})')})",
    "relu": lambda a, n: f"T.max({a[0]}, {f32(0.0, n)})",
    **{
        name: _helper(name)
        for name in ("exp", "log", "sqrt", "rsqrt", "abs", "tanh", "erf", "sigmoid", "softplus", "sin", "cos")
    },
}

BINARY: dict[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}


def gelu(x: str, lanes: int, approximate: str) -> str:
    """x · Φ(x) (Hendrycks & Gimpel 2016), with Φ by erf or by its tanh approximation."""
    half = f32(0.5, lanes)
    if approximate == "none":
        return f"{half} * ({x}) * ({_one(lanes)} + {call('inf_erf', lanes, f'({x}) * {f32(math.sqrt(0.5), lanes)}')})"
    inner = f"{f32(math.sqrt(2 / math.pi), lanes)} * (({x}) + {f32(0.044715, lanes)} * ({x}) * ({x}) * ({x}))"
    return f"{half} * ({x}) * ({_one(lanes)} + {call('inf_tanh', lanes, inner)})"


def power(base: str, exponent: str, value: float | None, lanes: int) -> str:
    """baseᵉ. A constant exponent that is a small integer or a half power is exact; else e^(exponent · log base)."""
    if value is not None and value in (1.0, 2.0, 3.0, 4.0):
        return " * ".join([f"({base})"] * int(value))
    if value == 0.5:
        return call("inf_sqrt", lanes, base)
    if value == -0.5:
        return call("inf_rsqrt", lanes, base)
    if value == -1.0:
        return f"{_one(lanes)} / ({base})"
    return call("inf_pow", lanes, base, exponent)


def elementwise(op: str, args: Sequence[str], lanes: int, attrs: Attrs, floats: bool) -> str:
    """TIR text of an elementwise `tensor.*` op; `floats`: on floating-point operands. Raises `CodegenError`."""
    name = op.removeprefix("tensor.")
    if name in BINARY:
        if name == "div" and not floats:
            raise CodegenError("tensor.div of integers has no kernel")
        return f"({args[0]}) {BINARY[name]} ({args[1]})"
    if name in ("maximum", "minimum"):
        return f"T.{'max' if name == 'maximum' else 'min'}({args[0]}, {args[1]})"
    if name == "logical_and":
        return f"T.bitwise_and({args[0]}, {args[1]})"
    if name == "logical_or":
        return f"T.bitwise_or({args[0]}, {args[1]})"
    if name == "logical_not":
        return f"T.Not({args[0]})"
    if name == "where" and floats:  # TVM's simplifier fails on arithmetic with a floating-point Select
        return call("inf_where", lanes, f'T.Cast("{vtype("float32", lanes)}", {args[0]})', args[1], args[2])
    if name == "where":
        return f"T.Select({args[0]}, {args[1]}, {args[2]})"
    if name == "gelu":
        return gelu(args[0], lanes, attrs["approximate"])
    if name == "neg" and not floats:
        return f"{splat('0', lanes)} - ({args[0]})"
    if name in UNARY:
        return UNARY[name](args, lanes)
    raise CodegenError(f"{op} has no scalar emitter")


SUPPORTED = frozenset(
    f"tensor.{n}"
    for n in (
        *UNARY,
        *BINARY,
        "maximum",
        "minimum",
        "logical_and",
        "logical_or",
        "logical_not",
        "where",
        "gelu",
        "pow",
        "cast",
    )
)

REGISTER = {DType.F32: "float32", DType.BF16: "float32", DType.I32: "int32", DType.I64: "int64", DType.BOOL: "bool"}
"""TIR type in which a value of each element type is computed."""

MEMORY = {DType.F32: "float32", DType.BF16: "uint16", DType.I32: "int32", DType.I64: "int64"}
"""TIR type of each element type in memory."""
