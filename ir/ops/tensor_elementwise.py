"""tensor: a small array language with PyTorch's semantics and explicit casts. Here: what works element by element.

Operands of an elementwise op have one element type (rank-0 scalars take it); results are rounded to it. Half-precision
math is done in float32 and rounded once per op, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.registry import Infer, OpDef, define
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
    "log": lambda x: x.log(),
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: _rounded_once(torch_module().rsqrt, x),
    "reciprocal": lambda x: x.reciprocal(),
    "abs": lambda x: x.abs(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: torch_module().nn.functional.silu(x),
    "relu": lambda x: x.relu(),
    "erf": lambda x: x.erf(),
    "softplus": lambda x: torch_module().nn.functional.softplus(x),
}


for _name, _fn in _UNARY.items():
    _infer = same if _name in ("neg", "abs", "relu") else real
    define(OpDef(f"tensor.{_name}", 1, _infer, lambda attrs, x, fn=_fn: fn(x), elementwise=True))


def _gelu(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(attrs["approximate"] in ("none", "tanh"), f"approximate is {attrs['approximate']!r}, not 'none' or 'tanh'")
    return real(types, attrs)


define(
    OpDef(
        "tensor.gelu",
        1,
        _gelu,
        lambda attrs, x: torch_module().nn.functional.gelu(x, approximate=attrs["approximate"]),
        attrs={"approximate": str},
        elementwise=True,
        doc='x * Phi(x), or its tanh form with approximate="tanh".',
    )
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
    define(OpDef(f"tensor.{name}", 2, infer, lambda attrs, a, b: fn(a, b), elementwise=True, **facts))


_binary("add", lambda a, b: a + b, commutative=True, unit=0)
_binary("sub", lambda a, b: a - b, unit=0)
_binary("mul", lambda a, b: a * b, commutative=True, unit=1)
_binary("div", _div, real, unit=1)
_binary("pow", _pow, unit=1)
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


define(OpDef("tensor.logical_not", 1, _not, lambda attrs, x: x.logical_not(), elementwise=True, logical=True))


def _where(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(types[0].dtype is DType.BOOL, "the condition is not bool")
    out = elementwise(types[1:], attrs)
    return TensorType(elementwise([TensorType(t.shape, out.dtype) for t in types], attrs).shape, out.dtype)


def _where_eval(attrs: Attrs, c: Any, a: Any, b: Any) -> Any:
    return torch_module().where(c, *_tensors(a, b))


define(OpDef("tensor.where", 3, _where, _where_eval, elementwise=True))

define(
    OpDef(
        "tensor.cast",
        1,
        lambda types, attrs: TensorType(types[0].shape, attrs["dtype"]),
        lambda attrs, x: x.to(torch_dtype(attrs["dtype"])),
        attrs={"dtype": DType},
        elementwise=True,
        quiet=True,
    )
)
