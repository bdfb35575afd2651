"""tensor: a small array language with PyTorch's semantics and explicit casts.

Operands of an elementwise op have one element type (rank-0 scalars take it); results are rounded to it. Half-precision
math is done in float32 and rounded once per op, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sympy

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Attrs
from inferir.ir.graph.registry import CONTRACTION, ELEMENTWISE, REDUCTION, SOURCE, VIEW, OpDef, define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import axis, ceil_div, compare, elementwise, need, same

if TYPE_CHECKING:
    import torch

DIM = (int, sympy.Expr)


def _torch() -> Any:
    import torch

    return torch


# --- elementwise ------------------------------------------------------------------------------------------------------


def _rounded_once(fn: Callable[..., Any], *operands: Any) -> Any:
    """`fn` in float32, for functions in which PyTorch rounds half-precision values in between, always or at times."""
    torch = _torch()
    tensors = [t for t in operands if isinstance(t, torch.Tensor)]
    if not tensors or tensors[0].dtype not in (torch.bfloat16, torch.float16):
        return fn(*operands)
    return fn(*(t.float() if isinstance(t, torch.Tensor) else t for t in operands)).to(tensors[0].dtype)


_UNARY: dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    "exp": lambda x: x.exp(),
    "log": lambda x: x.log(),
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: _rounded_once(_torch().rsqrt, x),
    "reciprocal": lambda x: x.reciprocal(),
    "abs": lambda x: x.abs(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: _torch().nn.functional.silu(x),
    "relu": lambda x: x.relu(),
    "erf": lambda x: x.erf(),
    "softplus": lambda x: _torch().nn.functional.softplus(x),
}


def _real(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Results are real numbers: integers are not promoted silently."""
    out = elementwise(types, attrs)
    need(out.dtype.is_float, f"{out.dtype.value} operands; insert a cast")
    return out


for _name, _fn in _UNARY.items():
    _infer = same if _name in ("neg", "abs", "relu") else _real
    define(OpDef(f"tensor.{_name}", 1, _infer, lambda attrs, x, fn=_fn: fn(x), traits=frozenset({ELEMENTWISE})))


def _gelu(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(attrs["approximate"] in ("none", "tanh"), f"approximate is {attrs['approximate']!r}, not 'none' or 'tanh'")
    return _real(types, attrs)


define(
    OpDef(
        "tensor.gelu",
        1,
        _gelu,
        lambda attrs, x: _torch().nn.functional.gelu(x, approximate=attrs["approximate"]),
        attrs={"approximate": str},
        traits=frozenset({ELEMENTWISE}),
        doc='x * Phi(x), or its tanh form with approximate="tanh".',
    )
)


def _tensors(a: Any, b: Any) -> tuple[Any, Any]:
    """Turn a Python number into a tensor of the other operand's type; two numbers take the type of the first."""
    torch = _torch()
    if not isinstance(a, torch.Tensor):
        number = torch.bool if isinstance(a, bool) else torch.int64 if isinstance(a, int) else torch.float64
        a = torch.as_tensor(a, dtype=b.dtype if isinstance(b, torch.Tensor) else number)
    if not isinstance(b, torch.Tensor):
        b = torch.as_tensor(b, dtype=a.dtype)
    return a, b


def _pow(a: Any, b: Any) -> Any:
    return _torch().pow(a, b) if isinstance(b, _torch().Tensor) else _rounded_once(_torch().pow, a, b)


_BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": lambda a, b: _torch().maximum(*_tensors(a, b)),
    "minimum": lambda a, b: _torch().minimum(*_tensors(a, b)),
    "pow": _pow,
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_LOGICAL: dict[str, Callable[..., Any]] = {
    "logical_and": lambda a, b: _torch().logical_and(*_tensors(a, b)),
    "logical_or": lambda a, b: _torch().logical_or(*_tensors(a, b)),
}

for _name, _fn in _BINARY.items():
    _infer = _real if _name == "div" else elementwise
    define(OpDef(f"tensor.{_name}", 2, _infer, lambda attrs, a, b, fn=_fn: fn(a, b), traits=frozenset({ELEMENTWISE})))
for _name, _fn in {**_COMPARE, **_LOGICAL}.items():
    define(OpDef(f"tensor.{_name}", 2, compare, lambda attrs, a, b, fn=_fn: fn(a, b), traits=frozenset({ELEMENTWISE})))


def _not(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(types[0].shape, DType.BOOL)


define(OpDef("tensor.logical_not", 1, _not, lambda attrs, x: x.logical_not(), traits=frozenset({ELEMENTWISE})))


def _where(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(types[0].dtype is DType.BOOL, "the condition is not bool")
    out = elementwise(types[1:], attrs)
    return TensorType(elementwise([TensorType(t.shape, out.dtype) for t in types], attrs).shape, out.dtype)


def _where_eval(attrs: Attrs, c: Any, a: Any, b: Any) -> Any:
    return _torch().where(c, *_tensors(a, b))


define(OpDef("tensor.where", 3, _where, _where_eval, traits=frozenset({ELEMENTWISE})))

define(
    OpDef(
        "tensor.cast",
        1,
        lambda types, attrs: TensorType(types[0].shape, attrs["dtype"]),
        lambda attrs, x: x.to(torch_dtype(attrs["dtype"])),
        attrs={"dtype": DType},
        traits=frozenset({ELEMENTWISE}),
    )
)

# --- reductions -------------------------------------------------------------------------------------------------------


def _reduced(shape: tuple[Dim, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[Dim, ...]:
    axes = {axis(d, len(shape)) for d in dims}
    need(bool(axes), "no axis to reduce")
    return tuple(1 if i in axes else d for i, d in enumerate(shape) if keepdim or i not in axes)


def _reduce(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(_reduced(types[0].shape, attrs["dims"], attrs["keepdim"]), types[0].dtype)


def _mean(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _reduce([_real(types, attrs)], attrs)


def _softmax(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    axis(attrs["dim"], types[0].rank)
    return _real(types, attrs)


_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": lambda x, dims, keep: x.sum(dims, keepdim=keep, dtype=x.dtype),
    "mean": lambda x, dims, keep: x.mean(dims, keepdim=keep),
    "max": lambda x, dims, keep: x.amax(dims, keepdim=keep),
    "min": lambda x, dims, keep: x.amin(dims, keepdim=keep),
}
for _name, _fn in _REDUCE.items():
    define(
        OpDef(
            f"tensor.{_name}",
            1,
            _mean if _name == "mean" else _reduce,
            lambda attrs, x, fn=_fn: fn(x, list(attrs["dims"]), attrs["keepdim"]),
            attrs={"dims": tuple, "keepdim": bool},
            traits=frozenset({REDUCTION}),
        )
    )

define(
    OpDef(
        "tensor.argmax",
        1,
        lambda types, attrs: TensorType(_reduced(types[0].shape, (attrs["dim"],), attrs["keepdim"]), DType.I32),
        lambda attrs, x: x.argmax(attrs["dim"], keepdim=attrs["keepdim"]).to(_torch().int32),
        attrs={"dim": int, "keepdim": bool},
        traits=frozenset({REDUCTION}),
        doc="Index of the first maximum.",
    )
)
define(
    OpDef(
        "tensor.softmax",
        1,
        _softmax,
        lambda attrs, x: x.softmax(attrs["dim"]),
        attrs={"dim": int},
        traits=frozenset({REDUCTION}),
    )
)

# --- shape ------------------------------------------------------------------------------------------------------------


def _view(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    out = TensorType(attrs["shape"], types[0].dtype)
    old, new = types[0].numel, out.numel
    need(old == new or sympy.expand(old - new) == 0, f"view to {out} changes the number of elements")
    return out


define(
    OpDef(
        "tensor.view",
        1,
        _view,
        lambda attrs, x: x.reshape(attrs["shape"]),
        attrs={"shape": tuple},
        traits=frozenset({VIEW}),
        doc="Row-major reshape.",
    )
)


def _permute(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    perm = attrs["perm"]
    need(sorted(perm) == list(range(types[0].rank)), f"{perm} is not a permutation of rank {types[0].rank}")
    return TensorType(tuple(types[0].shape[p] for p in perm), types[0].dtype)


define(
    OpDef(
        "tensor.permute",
        1,
        _permute,
        lambda attrs, x: x.permute(attrs["perm"]),
        attrs={"perm": tuple},
        traits=frozenset({VIEW}),
    )
)


def _expand(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    shape = attrs["shape"]
    need(len(shape) >= types[0].rank, "expand lowers the rank")
    for have, want in zip(reversed(types[0].shape), reversed(shape), strict=False):
        need(have == 1 or have == want, f"cannot expand {types[0]} to {shape}")
    return TensorType(shape, types[0].dtype)


define(
    OpDef(
        "tensor.expand",
        1,
        _expand,
        lambda attrs, x: x.expand(attrs["shape"]),
        attrs={"shape": tuple},
        traits=frozenset({VIEW}),
    )
)


def _slice(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    i = axis(attrs["dim"], types[0].rank)
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    need(step >= 1, f"step {step} is not positive")
    size = types[0].shape[i]
    if isinstance(start, int) and isinstance(stop, int):
        need(0 <= start <= stop and (not isinstance(size, int) or stop <= size), f"[{start}:{stop}] is outside {size}")
    return TensorType(
        tuple(ceil_div(stop - start, step) if j == i else d for j, d in enumerate(types[0].shape)), types[0].dtype
    )


def _slice_eval(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    index = [slice(None)] * x.dim()
    index[axis(attrs["dim"], x.dim())] = slice(attrs["start"], attrs["stop"], attrs["step"])
    return x[tuple(index)]


define(
    OpDef(
        "tensor.slice",
        1,
        _slice,
        _slice_eval,
        attrs={"dim": int, "start": DIM, "stop": DIM, "step": int},
        defaults={"step": 1},
        traits=frozenset({VIEW}),
        doc="x[..., start:stop:step, ...]; bounds are non-negative and not beyond the size.",
    )
)


def _cat(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    i = axis(attrs["dim"], types[0].rank)
    total: Dim = 0
    for t in types:
        need(t.dtype is types[0].dtype and t.rank == types[0].rank, f"{t} beside {types[0]}")
        need(
            all(j == i or a == b for j, (a, b) in enumerate(zip(t.shape, types[0].shape, strict=True))),
            f"{t} beside {types[0]}",
        )
        total = total + t.shape[i]
    return TensorType(tuple(total if j == i else d for j, d in enumerate(types[0].shape)), types[0].dtype)


define(OpDef("tensor.cat", (1, None), _cat, lambda attrs, *xs: _torch().cat(xs, attrs["dim"]), attrs={"dim": int}))

# --- contractions and gathers -----------------------------------------------------------------------------------------


def _linear(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, w = types[0], types[1]
    need(w.rank == 2 and x.rank >= 1, f"linear of {x} with {w}")
    need(x.shape[-1] == w.shape[1], f"inner dimensions {x.shape[-1]} and {w.shape[1]} differ")
    need(x.dtype is w.dtype, f"mixed element types {x.dtype.value} and {w.dtype.value}")
    if len(types) == 3:
        need(types[2].shape == (w.shape[0],), f"bias {types[2]} for {w.shape[0]} outputs")
    return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)


define(
    OpDef(
        "tensor.linear",
        (2, 3),
        _linear,
        lambda attrs, x, w, *b: _torch().nn.functional.linear(x, w, *b),
        traits=frozenset({CONTRACTION}),
        doc="x [..., K] times w [N, K] transposed, plus bias [N].",
    )
)


def _matmul(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = types
    need(a.rank >= 2 and b.rank >= 2 and a.dtype is b.dtype, f"matmul of {a} and {b}")
    need(a.shape[-1] == b.shape[-2], f"inner dimensions {a.shape[-1]} and {b.shape[-2]} differ")
    from inferir.ir.ops.common import broadcast

    return TensorType((*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]), a.dtype)


define(OpDef("tensor.matmul", 2, _matmul, lambda attrs, a, b: a @ b, traits=frozenset({CONTRACTION})))


def _packed(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, w = types[0], types[1]
    need(w.rank == 4 and x.rank == 2, f"packed linear of {x} with {w}")
    need(x.shape[1] == w.shape[1] * w.shape[3], f"inner dimensions {x.shape[1]} and {w.shape[1] * w.shape[3]} differ")
    need(ceil_div(attrs["n"], int(w.shape[2])) == w.shape[0], f"{attrs['n']} outputs do not fill {w.shape[0]} blocks")
    need(x.dtype is w.dtype, f"mixed element types {x.dtype.value} and {w.dtype.value}")
    return TensorType((x.shape[0], attrs["n"]), attrs["dtype"] or x.dtype)


def _packed_eval(attrs: Attrs, x: torch.Tensor, w: torch.Tensor) -> Any:
    from inferir.ir.ops.layout import unpack_weight

    dtype = x.dtype if attrs["dtype"] is None else torch_dtype(attrs["dtype"])
    return _torch().nn.functional.linear(x.to(dtype), unpack_weight(w, attrs["n"], attrs["interleave"]).to(dtype))


define(
    OpDef(
        "tensor.linear_packed",
        2,
        _packed,
        _packed_eval,
        attrs={"n": int, "interleave": int, "dtype": (DType, type(None))},
        defaults={"interleave": 1, "dtype": None},
        traits=frozenset({CONTRACTION}),
        doc="`tensor.linear` with a weight in the layout of `layout.pack_weight`; the result is in logical order. "
        "`dtype` f32 gives the sums unrounded (default: rounded to the type of x).",
    )
)


def _embedding(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    w, ids = types
    need(w.rank == 2 and ids.dtype.is_int, f"embedding of {w} by {ids}")
    return TensorType((*ids.shape, w.shape[1]), w.dtype)


define(OpDef("tensor.embedding", 2, _embedding, lambda attrs, w, ids: w[ids.long()], doc="Rows of w [V, H] by ids."))


def _gather_rows(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, rows = types
    need(x.rank >= 1 and rows.rank == 1 and rows.dtype.is_int, f"gather of {x} by {rows}")
    return TensorType((rows.shape[0], *x.shape[1:]), x.dtype)


define(OpDef("tensor.gather_rows", 2, _gather_rows, lambda attrs, x, rows: x[rows.long()], doc="x[rows]."))

# --- sources ----------------------------------------------------------------------------------------------------------


def _arange(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType((ceil_div(attrs["stop"] - attrs["start"], attrs["step"]),), attrs["dtype"])


define(
    OpDef(
        "tensor.arange",
        0,
        _arange,
        lambda attrs: _torch().arange(attrs["start"], attrs["stop"], attrs["step"], dtype=torch_dtype(attrs["dtype"])),
        attrs={"start": DIM, "stop": DIM, "step": int, "dtype": DType},
        defaults={"start": 0, "step": 1},
        traits=frozenset({SOURCE}),
    )
)
define(
    OpDef(
        "tensor.full",
        0,
        lambda types, attrs: TensorType(attrs["shape"], attrs["dtype"]),
        lambda attrs: _torch().full(attrs["shape"], _number(attrs["value"]), dtype=torch_dtype(attrs["dtype"])),
        attrs={"shape": tuple, "value": (bool, int, float), "dtype": DType},
        traits=frozenset({SOURCE}),
    )
)


def _number(value: float) -> float:
    if isinstance(value, float) and math.isnan(value):
        raise IRError("tensor.full with NaN")
    return value
