"""The dialect `acme`: one op, with its reference, its form in `tensor.*` ops, and how a traced model gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.graph import Builder, Value
from inferir.ir.graph.registry import Dialect, OpDef
from inferir.ir.ops.common import same

if TYPE_CHECKING:
    import torch


def _reference(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs() / attrs["limit"])


def _decompose(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    (x,) = operands
    part = b.op("tensor.div", b.op("tensor.abs", x), b.scalar(attrs["limit"]))
    return b.op("tensor.div", x, b.op("tensor.add", part, b.scalar(1.0)))


def _import(imp: Any, x: Any, limit: float) -> Value:
    result: Value = imp.op("acme.soft_clip", imp.value(x), limit=float(limit))
    return result


SOFT_CLIP = OpDef(
    "acme.soft_clip",
    1,
    same,
    _reference,
    attrs={"limit": float},
    decompose=_decompose,
    elementwise=True,
    doc="x / (1 + |x| / limit): like x near zero, never beyond the limit.",
)

DIALECT = Dialect("acme", (SOFT_CLIP,), {"acme.soft_clip.default": _import})
