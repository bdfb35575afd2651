"""TIR text of every elementwise op on `lanes` elements. All float math is in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inferir.codegen.lower.emitter import INFIX
from inferir.codegen.lower.forms import Written, forms
from inferir.codegen.lower.numbers import exponent
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import f32, splat, vtype
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node

REGISTER = {DType.F32: "float32", DType.BF16: "float32", DType.I32: "int32", DType.I64: "int64", DType.BOOL: "bool"}
"""TIR type in which a value of each element type is computed."""

MEMORY = {DType.F32: "float32", DType.BF16: "uint16", DType.I32: "int32", DType.I64: "int64", DType.BOOL: "uint8"}
"""TIR type of each element type in memory."""

Emit = Callable[[Sequence[str], int], str]


def _one(lanes: int) -> str:
    return f32(1.0, lanes)


def _helper(name: str) -> Emit:
    return lambda a, n: call(f"inf_{name}", n, a[0])


_ANY: Mapping[str, Emit] = {
    **{
        name: lambda a, n, sign=sign: f"({a[0]}) {sign} ({a[1]})"  # type: ignore[misc]
        for name, sign in INFIX.items()
    },
    "logical_and": lambda a, n: f"T.bitwise_and({a[0]}, {a[1]})",
    "logical_or": lambda a, n: f"T.bitwise_or({a[0]}, {a[1]})",
    "logical_not": lambda a, n: f"T.Not({a[0]})",
}
_FLOAT: Mapping[str, Emit] = {
    **_ANY,
    **{
        name: _helper(name)
        for name in ["exp", "log", "sqrt", "rsqrt", "abs", "tanh", "erf", "sigmoid", "softplus", "sin", "cos"]
    },
    "neg": lambda a, n: f"{f32(-1.0, n)} * ({a[0]})",
    "div": lambda a, n: f"({a[0]}) / ({a[1]})",
    "reciprocal": lambda a, n: f"{_one(n)} / ({a[0]})",
    # TIR's inequality of floats is false beside NaN.
    "ne": lambda a, n: f"T.bitwise_xor(({a[0]}) == ({a[1]}), {splat('T.bool(True)', n)})",
    # TIR's own maximum and minimum lose NaN.
    "maximum": lambda a, n: call("inf_max", n, a[0], a[1]),
    "minimum": lambda a, n: call("inf_min", n, a[0], a[1]),
    "relu": lambda a, n: call("inf_max", n, a[0], f32(0.0, n)),
    # TVM's simplifier fails on arithmetic with a floating-point Select.
    "where": lambda a, n: call("inf_where", n, f'T.Cast("{vtype("float32", n)}", {a[0]})', a[1], a[2]),
}
_INTEGER: Mapping[str, Emit] = {
    **_ANY,
    "maximum": lambda a, n: f"T.max({a[0]}, {a[1]})",
    "minimum": lambda a, n: f"T.min({a[0]}, {a[1]})",
    "neg": lambda a, n: f"{splat('0', n)} - ({a[0]})",
    "abs": lambda a, n: f"T.max({a[0]}, {splat('0', n)} - ({a[0]}))",
    "relu": lambda a, n: f"T.max({a[0]}, {splat('0', n)})",
    "where": lambda a, n: f"T.Select({a[0]}, {a[1]}, {a[2]})",
}
FORMS = forms("tvm_ops", "TIR form of the op")
"""Forms of other ops: (node, operands, their element type, lanes) -> the text of the result."""

OPS = Written(frozenset(f"tensor.{name}" for name in (*_FLOAT, "pow")), FORMS)


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


def literal(value: float, kind: str, lanes: int) -> str:
    """A number in registers of TIR type `kind`, in every lane."""
    if kind == "float32":
        return f32(float(value), lanes)
    return splat(f"T.{kind}({bool(value) if kind == 'bool' else int(value)})", lanes)


def elementwise(node: Node, args: Sequence[str], dtype: DType, lanes: int) -> str:
    """An elementwise op on operands of type `dtype`. Raises `CodegenError` for one without a form."""
    added = OPS.form(node.op)
    if added is not None:
        return added(node, args, dtype, lanes)
    name = node.op.removeprefix("tensor.")
    if dtype.is_float and name == "pow":
        return power(args[0], args[1], exponent(node), lanes)
    form = (_FLOAT if dtype.is_float else _INTEGER).get(name)
    if form is None:
        raise CodegenError(f"{node.op} of {dtype.value} has no kernel")
    return form(args, lanes)
