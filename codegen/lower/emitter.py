"""What a backend supplies to the walk over inner graphs: how to write what the walk has decided."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from inferir.codegen.lower.index import Index
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node, Value

if TYPE_CHECKING:
    from inferir.codegen.lower.evaluate import Evaluator


V = TypeVar("V")
"""What a backend makes of a value at a place: text, and what it needs to know of it."""


INFIX = dict(
    zip(
        ("add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne"),
        ("+", "-", "*", "<", "<=", ">", ">=", "==", "!="),
        strict=True,
    )
)
"""Elementwise ops of two operands that Python, TIR and Triton spell alike, by name."""


@dataclass(frozen=True)
class Guard:
    """Elements count only where low <= index < high; None is no bound."""

    index: Index
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Place:
    """Elements of a value in the current row: one `Index` per feature axis, and what else is known of them.

    lanes: so many consecutive positions of the last axis; guards: which elements are needed at all.
    """

    index: tuple[Index, ...]
    lanes: int = 1
    guards: tuple[Guard, ...] = ()

    def at(self, index: Sequence[Index]) -> Place:
        return replace(self, index=tuple(index))


class Emitter(Protocol[V]):
    """Writes values of type V. Whatever has no form in the backend is refused with a `CodegenError`.

    Floating-point values are float32 in registers, whatever their type in memory: the walk says where they are rounded.
    """

    @property
    def splits(self) -> bool:
        """Whether a run of neighbours is cut where a concatenation is, so that it reads one part; else parts are
        selected between."""

    def span(self, place: Place) -> int | None:
        """How many further positions must stay neighbours under every view; None: no position has a neighbour."""
        return None

    @property
    def ops(self) -> Container[str]:
        """The elementwise ops that `apply` can write; others decompose."""

    @property
    def registers(self) -> Container[DType]:
        """The element types that values can have."""

    @property
    def row(self) -> str:
        """The text of the current row's number."""

    def bound(self, value: Value, place: Place) -> V | None:
        """The value if something else than the walk computes it, such as an accumulator."""
        return None

    def in_memory(self, value: Value) -> bool: ...

    def load(self, source: Value, row: str | None, at: Index, place: Place) -> V:
        """Elements of a value in memory: at `at` of its row `row`, or at `at` where there are no rows."""

    def as_row(self, x: V) -> str:
        """A computed row number, as `load` takes it."""

    def number(self, value: float, dtype: DType, place: Place) -> V:
        """A constant, rounded already, that an operation on registers of `dtype` takes."""

    def full(self, value: float, dtype: DType, place: Place) -> V:
        """A constant as a value of its own."""
        return self.number(value, dtype, place)

    def positions(self, at: Index, step: int, dtype: DType, place: Place) -> V:
        """The index `at` itself as a number; neighbouring lanes differ by `step`."""

    def spread(self, x: V, place: Place) -> V:
        """One element in every lane."""
        return x

    def apply(self, node: Node, args: Sequence[V], dtype: DType, place: Place) -> V:
        """An elementwise op of `ops` on operands of type `dtype`, not rounded."""

    def cast(self, x: V, source: DType, out: DType, place: Place) -> V:
        """From registers of one type to registers of another, without rounding; to bool by comparing with 0."""

    def rounded(self, x: V, dtype: DType, place: Place) -> V:
        """What memory of type `dtype` would hold of a register."""

    def select(self, at: Index, bound: int, below: V, above: V, place: Place) -> V:
        """`below` where at < bound, else `above`. Not asked of one that splits."""
        raise AssertionError("sweeps are split where a concatenation is")

    def reduce(self, walk: Evaluator[V], node: Node, place: Place) -> V:
        """A reduction that `bound` did not know."""
        raise CodegenError(f"{node.op} has no form outside an accumulator")
