"""What ops are called with in checks: shapes and attributes for every op of this package, by width.

A form is a function of a width n that gives operands and attributes. An op of another distribution that works element
by element needs none; others are given to `check_op` as `forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferir.ir.contract.kv_reads import FullAttention, SlidingWindow
from inferir.ir.errors import IRError
from inferir.ir.graph.dims import Dim, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.registry import OpDef
from inferir.ir.graph.types import TensorType

FLOAT, INDEX, BOOL, NUMBER = "float", "index", "bool", "number"


@dataclass(frozen=True)
class Spec:
    """An operand: a tensor of the type that is checked, of row numbers below `high`, or of truth values; or a number.

    dtype: of a float operand that has a type of its own.
    """

    shape: tuple[Dim, ...] = ()
    kind: str = FLOAT
    high: int = 0
    value: float | int = 0.0
    dtype: DType | None = None

    def type(self, dtype: DType) -> TensorType:
        """The type of the tensor when `dtype` is checked."""
        kinds = {FLOAT: self.dtype or dtype, INDEX: DType.I32, BOOL: DType.BOOL}
        return TensorType(self.shape, kinds[self.kind])


Operands = Sequence[Spec]
Form = Callable[[int], tuple[Operands, dict[str, Any]]]


def floats(*shape: Dim) -> Spec:
    return Spec(shape)


def rows_below(high: int, *shape: Dim) -> Spec:
    return Spec(shape, INDEX, high)


def truths(*shape: Dim) -> Spec:
    return Spec(shape, BOOL)


def number(value: float | int) -> Spec:
    return Spec((), NUMBER, value=value)


def _fixed(*operands: Spec, **attrs: Any) -> list[Form]:
    return [lambda n: (operands, attrs)]


def _row(**attrs: Any) -> Form:
    return lambda n: ([floats(T, n)], attrs)


def _with(*rest: Callable[[int], Spec], **attrs: Any) -> Form:
    return lambda n: ([floats(T, n), *(make(n) for make in rest)], attrs)


def _like(n: int) -> Spec:
    return floats(T, n)


def _vector(n: int) -> Spec:
    return floats(n)


def _reduce(**attrs: Any) -> list[Form]:
    return [_row(dims=(-1,), keepdim=keep, **attrs) for keep in (False, True)]


_ATTENTION = {"scale": 0.5, "layer": 0}
FORMS: dict[str, list[Form]] = {
    "tensor.gelu": [_row(approximate=a) for a in ("none", "tanh")],
    "tensor.cast": [_row(dtype=d) for d in (DType.F32, DType.BF16, DType.F16, DType.BOOL)],
    "tensor.logical_not": [lambda n: ([truths(T, n)], {})],
    "tensor.logical_and": [lambda n: ([truths(T, n), truths(T, n)], {})],
    "tensor.logical_or": [lambda n: ([truths(T, n), truths(T, n)], {})],
    "tensor.where": [
        lambda n: ([truths(T, n), floats(T, n), floats(n)], {}),
        lambda n: ([truths(T, n), floats(T, n), number(0.1)], {}),
    ],
    **{f"tensor.{name}": _reduce() for name in ("sum", "mean", "max", "min")},
    "tensor.argmax": [_row(dim=-1, keepdim=False), _row(dim=1, keepdim=True)],
    "tensor.softmax": [_row(dim=-1)],
    "tensor.view": [
        lambda n: ([floats(T, 2 * n)], {"shape": (T, 2, n)}),
        lambda n: ([floats(T, n)], {"shape": (n * T,)}),
    ],
    "tensor.permute": [
        lambda n: ([floats(T, 2, n)], {"perm": (0, 2, 1)}),
        lambda n: ([floats(T, n)], {"perm": (1, 0)}),
    ],
    "tensor.expand": [lambda n: ([floats(T, 1)], {"shape": (T, n)}), lambda n: ([floats(T, n)], {"shape": (2, T, n)})],
    "tensor.slice": [
        lambda n: ([floats(T, 2 * n)], {"dim": 1, "start": 1, "stop": n + 1}),
        lambda n: ([floats(T, 2 * n)], {"dim": -1, "start": 0, "stop": 2 * n, "step": 2}),
    ],
    "tensor.cat": [_with(_like, dim=1), _with(lambda n: floats(T, 2), _like, dim=-1)],
    "tensor.arange": [lambda n: ([], {"start": 0, "stop": n, "step": 2, "dtype": DType.I32})],
    "tensor.full": [lambda n: ([], {"shape": (n, 2), "value": -1.5, "dtype": DType.BF16})],
    "tensor.linear": [_with(lambda n: floats(3, n)), _with(lambda n: floats(3, n), lambda n: floats(3))],
    "tensor.matmul": [lambda n: ([floats(2, T, n), floats(2, n, 3)], {})],
    "tensor.embedding": [lambda n: ([floats(5, n), rows_below(5, T)], {})],
    "tensor.gather_rows": [lambda n: ([floats(5, 2, n), rows_below(5, T)], {})],
    "nn.rms_norm": [
        _row(eps=1e-5),
        _with(_vector, eps=1e-5),
        _with(_vector, eps=1e-6, offset=1.0, round_before_weight=False),
        _with(lambda n: Spec((n,), dtype=DType.F32), eps=1e-6),
    ],
    "nn.layer_norm": [_row(eps=1e-5), _with(_vector, eps=1e-5), _with(_vector, _vector, eps=1e-5)],
    "nn.rotary": [
        lambda n: ([floats(T, 2, 2 * n), floats(T, 2 * n), floats(T, 2 * n)], {}),
        lambda n: ([floats(T, 1, 2 * n + 3), floats(T, 2 * n), floats(T, 2 * n)], {}),
    ],
    "nn.gated_act": [_with(_like, kind=kind) for kind in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")],
    "nn.softcap": [_row(cap=5.0)],
    "attn.attention": [
        lambda n: ([floats(T, 2, n), floats(T, 1, n), floats(T, 1, 3)], {**_ATTENTION, "reads": FullAttention()}),
        lambda n: ([floats(T, 2, n), floats(T, 2, n), floats(T, 2, n)], {**_ATTENTION, "reads": SlidingWindow(2)}),
        lambda n: ([floats(T, 2, n), floats(T, 1, n), floats(T, 1, n)], {**_ATTENTION, "softcap": 3.0}),
    ],
}
ELSEWHERE = {
    "core.constant": "a literal",
    "kernel.region": "`check_backend`",
    "layout.pack_*": "`check_format`",
    "tensor.linear_packed": "`check_format`",
    "attn.paged": "`check_pass` of insert-kv, and `check_backend`",
    "kv.write": "`check_pass` of insert-kv, and `check_backend`",
    "sample.draw": "`check_pass` of insert-sampling, and `check_backend`",
    "sample.argmax": "`check_pass` of insert-argmax, and `check_backend`",
}
"""Ops whose operands belong together, and what checks them instead."""


def forms_of(op: OpDef) -> list[Form]:
    """The forms of an op: those above, or for one that works element by element tensors of one shape, a vector beside
    a tensor, and, for two operands, numbers. Raises `IRError` for any other op.
    """
    if op.name in FORMS:
        return FORMS[op.name]
    count = op.arity if isinstance(op.arity, int) else op.arity[0]
    if not op.elementwise or op.attrs or not count:
        raise IRError(f"check_op does not know what {op.name} takes; give it forms=[([types], attributes), …]")
    found: list[Form] = [lambda n: ([floats(T, n)] * count, {})]
    if count == 2:
        found += [lambda n: ([floats(T, n), floats(n)], {}), lambda n: ([floats(T, n), number(0.1)], {})]
        found += [lambda n: ([number(0.1), floats(T, n)], {}), lambda n: ([floats(T, n), number(2)], {})]
    return found
