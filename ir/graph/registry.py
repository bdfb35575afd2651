"""Op definitions: declared once, used by the builder, verifier, printer, parser and interpreter."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferir.ir.errors import IRError
from inferir.ir.graph.graph import Attrs, Builder, Node, Provenance, Value
from inferir.ir.graph.types import TensorType

if TYPE_CHECKING:
    import torch

ELEMENTWISE = "elementwise"  # result element depends on the operand elements at the same (broadcast) index
VIEW = "view"  # result is a re-indexing of one operand
REDUCTION = "reduction"
SOURCE = "source"  # no operands
CONTRACTION = "contraction"  # matmul-like

Infer = Callable[[Sequence[TensorType], Attrs], "TensorType | tuple[TensorType, ...]"]
Evaluate = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]
Decompose = Callable[[Builder, Sequence[Value], Attrs], Value]


@dataclass(frozen=True)
class OpDef:
    """One op.

    arity: number of operands, or (min, max) with max None for variadic.
    attrs: attribute name -> accepted Python types; every attribute is required unless in `defaults`.
    infer: (operand types, attrs) -> result type(s); raises IRError on misuse. It is the verifier as well.
    evaluate: reference implementation in torch: evaluate(attrs, *tensors) -> tensor or tuple.
    decompose: the op in terms of `tensor.*` ops, where there is such a form.
    """

    name: str
    arity: int | tuple[int, int | None]
    infer: Infer
    evaluate: Evaluate | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    decompose: Decompose | None = None
    doc: str = ""

    @property
    def dialect(self) -> str:
        return self.name.split(".", 1)[0]

    def has(self, trait: str) -> bool:
        return trait in self.traits


_OPS: dict[str, OpDef] = {}
_DIALECTS = ("core", "tensor", "nn", "attn", "kv", "sample", "layout", "kernel")
_loaded = False


def define(op: OpDef) -> OpDef:
    """Register an op definition. Raises `IRError` on a duplicate name."""
    if op.name in _OPS:
        raise IRError(f"op {op.name} is defined twice")
    _OPS[op.name] = op
    return op


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for dialect in _DIALECTS:
            importlib.import_module(f"inferir.ir.ops.{dialect}")


def opdef(name: str) -> OpDef:
    """The definition of op `name`. Raises `IRError` naming an unknown op."""
    _load()
    try:
        return _OPS[name]
    except KeyError:
        raise IRError(f"unknown op {name!r}") from None


def all_ops() -> dict[str, OpDef]:
    """All registered ops by name."""
    _load()
    return dict(_OPS)


def has_trait(op: str, trait: str) -> bool:
    return opdef(op).has(trait)


def infer_types(op: OpDef, operands: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    """Check arity and attributes, then infer result types. Raises `IRError` naming the op."""
    low, high = (op.arity, op.arity) if isinstance(op.arity, int) else op.arity
    if len(operands) < low or (high is not None and len(operands) > high):
        raise IRError(f"{op.name}: {len(operands)} operands, expected {low if low == high else f'{low}..{high}'}")
    for key, kinds in op.attrs.items():
        if key not in attrs:
            raise IRError(f"{op.name}: attribute {key!r} is missing")
        if not isinstance(attrs[key], kinds):
            raise IRError(f"{op.name}: attribute {key!r} has type {type(attrs[key]).__name__}")
    for key in attrs:
        if key not in op.attrs:
            raise IRError(f"{op.name}: unknown attribute {key!r}")
    try:
        out = op.infer(operands, attrs)
    except IRError as error:
        if str(error).startswith(op.name):
            raise
        raise IRError(f"{op.name}({', '.join(map(str, operands))}): {error}") from None
    return out if isinstance(out, tuple) else (out,)


def make_node(name: str, operands: tuple[Value, ...], attrs: Mapping[str, Any], loc: Provenance) -> Node:
    """Build a node with inferred result types and default attributes filled in."""
    op = opdef(name)
    full = Attrs({**op.defaults, **attrs}) if op.defaults else (attrs if isinstance(attrs, Attrs) else Attrs(attrs))
    return Node(name, operands, full, infer_types(op, [v.type for v in operands], full), loc)
