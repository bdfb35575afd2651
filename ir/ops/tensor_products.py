"""tensor: matrix products, and rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.registry import define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import broadcast, need, torch_module
from inferir.ir.weight_format import FORMATS

if TYPE_CHECKING:
    import torch


def _linear(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, w = types[0], types[1]
    need(w.rank == 2 and x.rank >= 1, f"linear of {x} with {w}")
    need(x.shape[-1] == w.shape[1], f"inner dimensions {x.shape[-1]} and {w.shape[1]} differ")
    need(x.dtype is w.dtype, f"mixed element types {x.dtype.value} and {w.dtype.value}")
    if len(types) == 3:
        need(types[2].shape == (w.shape[0],), f"bias {types[2]} for {w.shape[0]} outputs")
    return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)


define(
    "tensor.linear",
    (2, 3),
    _linear,
    lambda attrs, x, w, *b: torch_module().nn.functional.linear(x, w, *b),
    contraction=True,
    last_axis=True,
    doc="x [..., K] times w [N, K] transposed, plus bias [N].",
)


def _matmul(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = types
    need(a.rank >= 2 and b.rank >= 2 and a.dtype is b.dtype, f"matmul of {a} and {b}")
    need(a.shape[-1] == b.shape[-2], f"inner dimensions {a.shape[-1]} and {b.shape[-2]} differ")
    return TensorType((*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]), a.dtype)


define("tensor.matmul", 2, _matmul, lambda attrs, a, b: a @ b, contraction=True, in_memory=2)


def _packed(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, *stored = types
    need(x.rank == 2, f"packed linear of {x}")
    weight = TensorType((attrs["n"], x.shape[1]), x.dtype)
    FORMATS.get(attrs["format"]).check(stored, weight, interleave=attrs["interleave"])
    return TensorType((x.shape[0], attrs["n"]), attrs["dtype"] or x.dtype)


def _packed_eval(attrs: Attrs, x: torch.Tensor, *stored: torch.Tensor) -> Any:
    dtype = x.dtype if attrs["dtype"] is None else torch_dtype(attrs["dtype"])
    weight = FORMATS.get(attrs["format"]).unpack(stored, attrs["n"], attrs["interleave"])
    return torch_module().nn.functional.linear(x.to(dtype), weight.to(dtype))


define(
    "tensor.linear_packed",
    (2, None),
    _packed,
    _packed_eval,
    attrs={"n": int, "format": str, "interleave": int, "dtype": (DType, type(None))},
    defaults={"format": "panels", "interleave": 1, "dtype": None},
    contraction=True,
    last_axis=True,
    in_memory=None,
    anchor="matmul",
    short="linear",
    doc="`tensor.linear` with the stored tensors of a weight in `format`; the result is in logical order. "
    "`dtype` f32 gives the sums unrounded (default: rounded to the type of x).",
)


def _embedding(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    w, ids = types
    need(w.rank == 2 and ids.dtype.is_int, f"embedding of {w} by {ids}")
    return TensorType((*ids.shape, w.shape[1]), w.dtype)


define(
    "tensor.embedding",
    2,
    _embedding,
    lambda attrs, w, ids: w[ids.long()],
    lookup=True,
    moves=True,
    in_memory=1,
    doc="Rows of w [V, H] by ids.",
)


def _gather_rows(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, rows = types
    need(x.rank >= 1 and rows.rank == 1 and rows.dtype.is_int, f"gather of {x} by {rows}")
    return TensorType((rows.shape[0], *x.shape[1:]), x.dtype)


define(
    "tensor.gather_rows",
    2,
    _gather_rows,
    lambda attrs, x, rows: x[rows.long()],
    lookup=True,
    moves=True,
    in_memory=1,
    short="gather",
    doc="x[rows].",
)
