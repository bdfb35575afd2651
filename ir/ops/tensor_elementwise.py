"""tensor: a small array language with PyTorch's semantics and explicit casts. Here: what works element by element.

Operands of an elementwise op have one element type (rank-0 scalars take it); results are rounded to it. Half-precision
math is done in float32 and rounded once per op, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Value
from inferir.ir.graph.registry import Decompose, Infer, define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import compare, elementwise, need, real, same, torch_module


def _rounded_once(fn: Callable[..., Any], *operands: Any) -> Any:
    """`fn` in float32, for functions in which PyTorch rounds half-precision values in between, always or at times."""
    torch = torch_module()
    tensors = [t for t in operands if isinstance(t, torch.Tensor)]
    if not tensors or tensors[0].dtype not in (torch.bfloat16, torch.float16):
        return fn(*operands)
    return fn(*(t.float() if isinstance(t, torch.Tensor) else t for t in operands)).to(tensors[0].dtype)


_UNARY: dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    "exp": lambda x: x.exp(),
    "expm1": lambda x: x.expm1(),
    "log": lambda x: x.log(),
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: _rounded_once(torch_module().rsqrt, x),
    "reciprocal": lambda x: x.reciprocal(),
    "abs": lambda x: x.abs(),
    "floor": lambda x: x.floor(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: torch_module().nn.functional.silu(x),
    "relu": lambda x: x.relu(),
    "erf": lambda x: x.erf(),
    "softplus": lambda x: torch_module().nn.functional.softplus(x),
}


def _silu_parts(b: Builder, x: Value, attrs: Attrs) -> Value:
    """x / (1 + exp(-x))."""
    power = b.op("tensor.exp", b.op("tensor.sub", b.scalar(0.0), x))
    return b.op("tensor.div", x, b.op("tensor.add", b.scalar(1.0), power))


def _expm1_parts(b: Builder, x: Value, attrs: Attrs) -> Value:
    """exp(x) - 1; near 0, where that cancels, 2 t / (1 - t) with t = tanh(x / 2)."""
    t = b.op("tensor.tanh", b.op("tensor.mul", x, b.scalar(0.5)))
    near = b.op("tensor.div", b.op("tensor.add", t, t), b.op("tensor.sub", b.scalar(1.0), t))
    far = b.op("tensor.sub", b.op("tensor.exp", x), b.scalar(1.0))
    return b.op("tensor.where", b.op("tensor.lt", b.op("tensor.abs", x), b.scalar(1.0)), near, far)


def _floor_parts(b: Builder, x: Value, attrs: Attrs) -> Value:
    """By way of integers; numbers from 2^23 on are whole, and whole ones stay as they are, -0 and NaN too."""
    whole = b.op("tensor.cast", b.op("tensor.cast", x, dtype=DType.I32), dtype=DType.F32)
    below = b.op("tensor.where", b.op("tensor.gt", whole, x), b.op("tensor.sub", whole, b.scalar(1.0)), whole)
    kept = b.op("tensor.where", b.op("tensor.eq", whole, x), x, below)
    return b.op("tensor.where", b.op("tensor.lt", b.op("tensor.abs", x), b.scalar(2.0**23)), kept, x)


def _gelu_parts(b: Builder, x: Value, attrs: Attrs) -> Value:
    """x · Φ(x) (Hendrycks & Gimpel 2016), with Φ by erf or by its tanh approximation."""
    if attrs["approximate"] == "none":
        bend = b.op("tensor.erf", b.op("tensor.mul", x, b.scalar(math.sqrt(0.5))))
    else:
        cube = b.op("tensor.mul", b.op("tensor.mul", b.op("tensor.mul", b.scalar(0.044715), x), x), x)
        inner = b.op("tensor.mul", b.scalar(math.sqrt(2 / math.pi)), b.op("tensor.add", x, cube))
        bend = b.op("tensor.tanh", inner)
    return b.op("tensor.mul", b.op("tensor.mul", b.scalar(0.5), x), b.op("tensor.add", b.scalar(1.0), bend))


def _in_float32(parts: Callable[[Builder, Value, Attrs], Value]) -> Decompose:
    """`parts` in float32, rounded once."""

    def decompose(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
        (x,) = operands
        if x.type.dtype is DType.F32:
            return parts(b, x, attrs)
        return b.op("tensor.cast", parts(b, b.op("tensor.cast", x, dtype=DType.F32), attrs), dtype=x.type.dtype)

    return decompose


_PARTS = {"silu": _silu_parts, "expm1": _expm1_parts, "floor": _floor_parts}

for _name, _fn in _UNARY.items():
    _infer = same if _name in ("neg", "abs", "relu") else real
    _parts = _in_float32(_PARTS[_name]) if _name in _PARTS else None
    define(f"tensor.{_name}", 1, _infer, lambda attrs, x, fn=_fn: fn(x), decompose=_parts, elementwise=True)


def _gelu(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(attrs["approximate"] in ("none", "tanh"), f"approximate is {attrs['approximate']!r}, not 'none' or 'tanh'")
    return real(types, attrs)


define(
    "tensor.gelu",
    1,
    _gelu,
    lambda attrs, x: torch_module().nn.functional.gelu(x, approximate=attrs["approximate"]),
    attrs={"approximate": str},
    decompose=_in_float32(_gelu_parts),
    elementwise=True,
    doc='x * Phi(x), or its tanh form with approximate="tanh".',
)


def _tensors(a: Any, b: Any) -> tuple[Any, Any]:
    """Turn a Python number into a tensor of the other operand's type; two numbers take the type of the first."""
    torch = torch_module()
    if not isinstance(a, torch.Tensor):
        number = torch.bool if isinstance(a, bool) else torch.int64 if isinstance(a, int) else torch.float64
        a = torch.as_tensor(a, dtype=b.dtype if isinstance(b, torch.Tensor) else number)
    if not isinstance(b, torch.Tensor):
        b = torch.as_tensor(b, dtype=a.dtype)
    return a, b


def _pow(a: Any, b: Any) -> Any:
    return torch_module().pow(a, b) if isinstance(b, torch_module().Tensor) else _rounded_once(torch_module().pow, a, b)


def _div(a: Any, b: Any) -> Any:
    """A number over a tensor is one division: PyTorch's operator multiplies by a rounded reciprocal."""
    return a / b if isinstance(a, torch_module().Tensor) else torch_module().div(*_tensors(a, b))


def _binary(name: str, fn: Callable[..., Any], infer: Infer = elementwise, **facts: Any) -> None:
    define(f"tensor.{name}", 2, infer, lambda attrs, a, b: fn(a, b), elementwise=True, **facts)


_binary("add", lambda a, b: a + b, commutative=True, unit=0)
_binary("sub", lambda a, b: a - b, unit=0)
_binary("mul", lambda a, b: a * b, commutative=True, unit=1, exact_numbers=(0, 1))
_binary("div", _div, real, unit=1, exact_numbers=(1,))
_binary("pow", _pow, unit=1, exact_numbers=(1,))
_binary("maximum", lambda a, b: torch_module().maximum(*_tensors(a, b)), commutative=True)
_binary("minimum", lambda a, b: torch_module().minimum(*_tensors(a, b)), commutative=True)
_binary("lt", lambda a, b: a < b, compare)
_binary("le", lambda a, b: a <= b, compare)
_binary("gt", lambda a, b: a > b, compare)
_binary("ge", lambda a, b: a >= b, compare)
_binary("eq", lambda a, b: a == b, compare, commutative=True)
_binary("ne", lambda a, b: a != b, compare, commutative=True)
_binary(
    "logical_and", lambda a, b: torch_module().logical_and(*_tensors(a, b)), compare, commutative=True, logical=True
)
_binary("logical_or", lambda a, b: torch_module().logical_or(*_tensors(a, b)), compare, commutative=True, logical=True)


def _not(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(types[0].shape, DType.BOOL)


define("tensor.logical_not", 1, _not, lambda attrs, x: x.logical_not(), elementwise=True, logical=True)


def _where(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(types[0].dtype is DType.BOOL, "the condition is not bool")
    out = elementwise(types[1:], attrs)
    return TensorType(elementwise([TensorType(t.shape, out.dtype) for t in types], attrs).shape, out.dtype)


def _where_eval(attrs: Attrs, c: Any, a: Any, b: Any) -> Any:
    return torch_module().where(c, *_tensors(a, b))


define("tensor.where", 3, _where, _where_eval, elementwise=True, conditions=1)

define(
    "tensor.cast",
    1,
    lambda types, attrs: TensorType(types[0].shape, attrs["dtype"]),
    lambda attrs, x: x.to(torch_dtype(attrs["dtype"])),
    attrs={"dtype": DType},
    elementwise=True,
    quiet=True,
)
