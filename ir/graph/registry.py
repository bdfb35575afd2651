"""Op definitions: declared once, with everything that is known about an op, for whoever works on graphs.

The table here knows no op: a dialect defines its own when it is imported. Those of this system are imported at the
first question; another distribution adds one by an entry point of the group `inferir.ops` that is named like the
dialect and names a `Dialect`. It is loaded when one of its ops, or a rule to import an operator, is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.types import TensorType
from inferir.ir.plugin_registry import PluginRegistry

if TYPE_CHECKING:
    import torch

Infer = Callable[[Sequence[TensorType], Attrs], "TensorType | tuple[TensorType, ...]"]
Evaluate = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]
Decompose = Callable[..., Any]
"""(builder, operand values, attrs) -> result value."""

Fields = ParamSpec("Fields")

ROWWISE = "rowwise"
"""The anchor of a region that no op with an anchor of its own starts."""


@dataclass(frozen=True)
class OpDef:
    """One op: what it takes and means, and facts that passes and code generators ask for.

    arity: number of operands, or (min, max) with max None for variadic.
    infer: (operand types, attrs) -> result type(s); raises `IRError` on misuse. It is the verifier as well. None for a
      source, whose type is given with it.
    evaluate: reference implementation in torch: evaluate(attrs, *tensors) -> tensor or tuple.
    attrs: attribute name -> accepted Python types; every attribute is required unless in `defaults`. An attribute `dim`
      or `dims` names the axes along which the op works.
    decompose: the op in terms of `tensor.*` ops, where there is such a form.

    Facts; the default says that there is nothing to know:

    elementwise: an element of the result depends on the operands' elements at the same (broadcast) index alone.
    commutative: the two operands may change places.
    unit: the number e with op(x, e) = x, and with op(e, x) = x if commutative.
    logical: operands count as true or false, whatever their type.
    view: the result is operand 0 at another index, which the attributes say.
    lookup: the result is rows of operand 0, a table, by the numbers in operand 1, which may be of any integer type.
    moves: elements of the result are elements of the operands, unchanged.
    reduction: elements along an axis meet, in a sweep over the row.
    contraction: a matrix product.
    last_axis: it works along the last axis of operand 0; the other operands are the same for all rows.
    mixes_rows: rows of the result depend on other rows of the operands than their own.
    in_memory: so many leading operands (None: all) must lie in memory, since they are read by another index than the
      own row.
    stores: the operand whose rows are written into operand 0, in place; the result is operand 0 afterwards.
    converts_from: operands from this one on may have a float type of their own, which the op converts.
    conditions: so many leading operands are conditions, of type bool whatever the others are.
    exact_numbers: operands that, as numbers beside half-precision tensors, keep the precision of float32.
    anchor: the kind of region that the op starts; every region has at most one such op.
    short: its name in names of regions (default: the name without dialect).
    quiet: says nothing of what is computed, so names for people leave it out.
    result_names: names of the results in names of weights that are made by it (default: the name without dialect).
    """

    name: str
    arity: int | tuple[int, int | None]
    infer: Infer | None
    evaluate: Evaluate | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    decompose: Decompose | None = None
    doc: str = ""
    elementwise: bool = False
    commutative: bool = False
    unit: float | None = None
    logical: bool = False
    view: bool = False
    lookup: bool = False
    moves: bool = False
    reduction: bool = False
    contraction: bool = False
    last_axis: bool = False
    mixes_rows: bool = False
    in_memory: int | None = 0
    stores: int | None = None
    converts_from: int | None = None
    conditions: int = 0
    exact_numbers: tuple[int, ...] = ()
    anchor: str = ""
    short: str = ""
    quiet: bool = False
    result_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = self.name.split(".", 1)[1]
        object.__setattr__(self, "short", self.short or plain)
        object.__setattr__(self, "result_names", self.result_names or (plain,))

    @property
    def source(self) -> bool:
        """Whether it stands for a value that is given, with its type: a run-time operand, a weight or a number."""
        return self.infer is None

    @property
    def axes(self) -> str | None:
        """The attribute that names the axes along which the op works, if it has one."""
        return next((key for key in ("dims", "dim") if key in self.attrs), None)


@dataclass(frozen=True)
class Dialect:
    """Ops of another distribution.

    name: what stands before the dot, and the entry point's name. ops: with a reference implementation each. imports:
    how operators of a traced module become ops, by the operator as it is printed, such as "acme.hinge.default":
    rule(importer, *the operator's arguments) -> what it becomes (`inferir.frontend.capture.importer`).
    """

    name: str
    ops: tuple[OpDef, ...] = ()
    imports: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def _problem(value: Any) -> str | None:
    if not isinstance(value, Dialect):
        return f"it is no Dialect but of type {type(value).__name__}"
    for op in value.ops:
        if op.name.partition(".")[0] != value.name:
            return f"the op {op.name} is not of the dialect {value.name}"
        if op.evaluate is None:
            return f"the op {op.name} has no reference implementation"
    return None


DIALECTS: PluginRegistry[object] = PluginRegistry("ops", "dialect", IRError, _problem)
"""By the name that stands before the dot: what defines the ops, a module of this system or a `Dialect`."""

_OPS: dict[str, OpDef] = {}
_loaded = False


def _registering(make: Callable[Fields, OpDef]) -> Callable[Fields, OpDef]:
    def define(*args: Fields.args, **kwargs: Fields.kwargs) -> OpDef:
        op = make(*args, **kwargs)
        if op.name in _OPS:
            raise IRError(f"op {op.name} is defined twice")
        _OPS[op.name] = op
        return op

    return define


define = _registering(OpDef)
"""Register an op; takes what `OpDef` takes. Raises `IRError` on a duplicate name."""


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        importlib.import_module("inferir.ir.ops.dialects")


def opdef(name: str) -> OpDef:
    """The definition of op `name`. Raises `IRError` naming an unknown op or dialect."""
    _load()
    if name not in _OPS:
        prefix = name.partition(".")[0]
        try:
            found = DIALECTS.get(prefix)
        except IRError as error:
            raise IRError(f"unknown op {name!r}: {error}") from None
        if isinstance(found, Dialect):
            _OPS.update({op.name: op for op in found.ops if op.name.partition(".")[0] == prefix})
    if name not in _OPS:
        raise IRError(f"unknown op {name!r}")
    return _OPS[name]


def added_dialects() -> dict[str, Dialect]:
    """The dialects of other distributions by name, loaded; those that cannot be loaded are left out with a warning."""
    _load()
    return {name: found for name, found in DIALECTS.load().items() if isinstance(found, Dialect)}


def all_ops() -> dict[str, OpDef]:
    """All registered ops by name."""
    _load()
    return dict(_OPS)


def anchors() -> set[str]:
    """The kinds of regions."""
    return {ROWWISE, *(op.anchor for op in all_ops().values() if op.anchor)}


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
    if op.infer is None:
        raise IRError(f"{op.name}: the type of a source is given, not inferred; use Builder.input, weight or scalar")
    try:
        out = op.infer(operands, attrs)
    except IRError as error:
        if str(error).startswith(op.name):
            raise
        raise IRError(f"{op.name}({', '.join(map(str, operands))}): {error}") from None
    return out if isinstance(out, tuple) else (out,)
