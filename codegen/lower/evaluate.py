"""The walk over a region's inner graph that every backend shares: the value of an expression at a place.

A value of the body has a leading row axis (symbol T, R or G) and static feature axes, or only static axes (weights).
Its elements at a place of the current row are found by walking the expression: elementwise ops combine their operands
at the broadcast place, views rewrite it, a concatenation reads the parts that the place may meet, gathers compute a row
number first, and what lies in memory is loaded. The rules are here, the text is the `Emitter`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic

from inferir.codegen.lower.emitter import Emitter, Guard, Place, V
from inferir.codegen.lower.index import Index, Var, flatten
from inferir.codegen.lower.numbers import number, operand_type, stored
from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.lower.views import VIEWS, aligned, feature_axis
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node, Value
from inferir.ir.graph.registry import opdef

_MOST_ROWS = 2**31


class SplitNeededError(Exception):
    """A run of neighbours must be cut `after` so many positions for a concatenation to be decided."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.after = after


@dataclass
class Evaluator(Generic[V]):
    """Values of one scope, each computed once per place. row: the symbol of the row axis."""

    row: Dim
    emitter: Emitter[V]
    done: dict[tuple[Value, Place], V] = field(default_factory=dict)

    def value(self, v: Value, place: Place) -> V:
        """`v` at `place`. Raises `CodegenError` naming an op without a form."""
        key = (v, place)
        if key not in self.done:
            self.done[key] = self._value(v, place)
        return self.done[key]

    def _value(self, v: Value, place: Place) -> V:
        node, e = v.node, self.emitter
        shape = static_shape(v.type, self.row)
        if len(place.index) != len(shape):
            raise CodegenError(f"index of rank {len(place.index)} for {v.type}")
        if place.lanes > 1 and (not shape or shape[-1] == 1):
            return e.spread(self.value(v, replace(place, lanes=1)), place)
        found = e.bound(v, place)
        if found is not None:
            return found
        if e.in_memory(v):
            return e.load(v, e.row if has_row(v.type, self.row) else None, flatten(place.index, shape), place)
        if node.op in VIEWS:
            return self.value(node.operands[0], VIEWS[node.op](node, place, self.row, e.span(place)))
        if node.op in _OTHERS:
            return _OTHERS[node.op](self, node, place)
        if opdef(node.op).reduction:
            return e.reduce(self, node, place)
        if opdef(node.op).elementwise and node.op in e.ops:
            return self._elementwise(node, place)
        raise CodegenError(f"{node.op} has no row-wise form")

    # --- elementwise ---

    def _elementwise(self, node: Node, place: Place) -> V:
        e, out, dtype = self.emitter, node.types[0].dtype, operand_type(node)
        for kind in (dtype, out):
            self._check(node, kind)
        args = [self._operand(node, i, dtype, place) for i in range(len(node.operands))]
        return self.rounded(e.apply(node, args, dtype, place), out, place)

    def _operand(self, node: Node, i: int, dtype: DType, place: Place) -> V:
        o = node.operands[i]
        truth = opdef(node.op).logical
        if o.op == "core.scalar":
            value = number(node, i, dtype)
            return self.emitter.number(bool(value) if truth else value, DType.BOOL if truth else dtype, place)
        x = self.value(o, aligned(o, place, self.row))
        return self.emitter.cast(x, o.type.dtype, DType.BOOL, place) if truth and o.type.dtype is not DType.BOOL else x

    def _cast(self, node: Node, place: Place) -> V:
        (x,) = node.operands
        source, out = x.type.dtype, node.types[0].dtype
        for dtype in (source, out):
            self._check(node, dtype)
        value = self.value(x, aligned(x, place, self.row))
        return value if source is out else self.rounded(self.emitter.cast(value, source, out, place), out, place)

    def rounded(self, x: V, dtype: DType, place: Place) -> V:
        """Results in half precision are rounded once per op."""
        return self.emitter.rounded(x, dtype, place) if dtype in (DType.BF16, DType.F16) else x

    def _check(self, node: Node, dtype: DType) -> None:
        if dtype not in self.emitter.registers:
            raise CodegenError(f"{node.op}: {dtype.value} values have no register form")

    # --- several sources, or none ---

    def _cat(self, node: Node, place: Place) -> V:
        axis = feature_axis(node, self.row)
        at = place.index[axis]
        last = at.high + (place.lanes - 1 if axis == len(place.index) - 1 else 0)
        parts: list[tuple[Value, int, int]] = []
        start = 0
        for part in node.operands:
            end = start + static_shape(part.type, self.row)[axis]
            if start <= last and at.low < end:
                parts.append((part, start, end))
            start = end
        if len(parts) > 1 and self.emitter.splits:
            raise SplitNeededError(parts[0][2] - at.offset)
        values = []
        for n, (part, start, end) in enumerate(parts):
            inner = place.at((*place.index[:axis], at + -start, *place.index[axis + 1 :]))
            if len(parts) > 1:
                guard = Guard(at, start if n else None, end if n < len(parts) - 1 else None)
                inner = replace(inner, guards=(*inner.guards, guard))
            values.append(self.value(part, inner))
        out = values[-1]
        for (_, _, end), value in reversed(list(zip(parts[:-1], values[:-1], strict=True))):
            out = self.emitter.select(at, end, value, out, place)
        return out

    def _gather(self, node: Node, place: Place) -> V:
        """Rows of a table in memory by computed or loaded numbers, one number per row."""
        table, ids = node.operands
        if not self.emitter.in_memory(table):
            raise CodegenError(f"{node.op} of a computed table has no row-wise form")
        sizes = [d for d in table.type.shape[1:] if isinstance(d, int)]
        if len(sizes) < table.type.rank - 1:
            raise CodegenError(f"{node.op}: {table.type} has no static rows")
        split = len(static_shape(ids.type, self.row))
        if any(i.terms for i in place.index[:split]):
            raise CodegenError(f"{node.op} by {ids.type} has no row-wise form: one number per row is needed")
        number = self.value(ids, Place(place.index[:split], 1, place.guards))
        return self.emitter.load(table, self.emitter.as_row(number), flatten(place.index[split:], sizes), place)

    def _full(self, node: Node, place: Place) -> V:
        dtype = node.types[0].dtype
        self._check(node, dtype)
        return self.emitter.full(stored(node.attrs["value"], dtype), dtype, place)

    def _arange(self, node: Node, place: Place) -> V:
        dtype, start, step = node.types[0].dtype, node.attrs["start"], node.attrs["step"]
        self._check(node, dtype)
        if not isinstance(start, int):
            raise CodegenError(f"{node.op}: {node.types[0]} from {start} has no row-wise form")
        rows = has_row(node.types[0], self.row)
        at = Index.of(Var(self.emitter.row, _MOST_ROWS)) if rows else place.index[0]
        return self.rounded(self.emitter.positions(at.scale(step) + start, step, dtype, place), dtype, place)


_OTHERS = {
    "tensor.cast": Evaluator._cast,
    "tensor.cat": Evaluator._cat,
    "tensor.embedding": Evaluator._gather,
    "tensor.gather_rows": Evaluator._gather,
    "tensor.full": Evaluator._full,
    "tensor.arange": Evaluator._arange,
}
