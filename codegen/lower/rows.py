"""Row-wise bodies: their row axis, feature axes, and the values that are computed in a sweep of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import axis as normal_axis


def has_row(type_: TensorType, row: Dim) -> bool:
    """Whether the leading axis is the row axis."""
    return type_.rank > 0 and type_.shape[0] == row


def static_shape(type_: TensorType, row: Dim) -> tuple[int, ...]:
    """The feature axes of a type: all axes but a leading row axis. Raises `CodegenError` if one is symbolic."""
    dims = type_.shape[1:] if has_row(type_, row) else type_.shape
    for dim in dims:
        if not isinstance(dim, int):
            raise CodegenError(f"axis {dim} of {type_} is not static")
    return tuple(d for d in dims if isinstance(d, int))


def stores(value: Value) -> bool:
    """Whether a value is one of its operands with rows of another written into it, in place."""
    return opdef(value.op).stores is not None


def stored_value(result: Value) -> Value:
    """What has to be computed for a result of a body: itself, or what it writes to a cache."""
    position = opdef(result.op).stores
    return result if position is None else result.node.operands[position]


def row_symbol(body: Graph) -> Dim:
    """The symbol of the row axis of a row-wise body: the leading axis of the first result that has one."""
    for value in body.outputs:
        type_ = stored_value(value).type
        if type_.rank and not isinstance(type_.shape[0], int):
            return type_.shape[0]
    raise CodegenError("no result has a row axis")


def reduced_axes(node: Node, row: Dim) -> tuple[int, ...]:
    """The feature axes that a reduction runs over, in order. Raises `CodegenError` for one over rows."""
    (x,) = node.operands
    dims = node.attrs["dims"] if "dims" in node.attrs else (node.attrs["dim"],)
    out = sorted({normal_axis(d, x.type.rank) - has_row(x.type, row) for d in dims})
    if out[0] < 0:
        raise CodegenError(f"{node.op} over rows has no row-wise form")
    return tuple(out)


def sweep_shapes(value: Value, row: Dim) -> list[tuple[int, ...]]:
    """Shapes in which the elements of a value can be visited: its own, then those of values that it may reshape."""
    own = static_shape(value.type, row) or (1,)
    stack, seen, out = [value], set[Value](), [own]
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        shape = v.type.shape[1:] if has_row(v.type, row) else v.type.shape
        sizes = tuple(d for d in shape if isinstance(d, int))
        if sizes and len(sizes) == len(shape) and math.prod(sizes) == math.prod(own) and sizes not in out:
            out.append(sizes)
        stack += v.node.operands
    return out


@dataclass(frozen=True)
class Root:
    """A value that is computed in a sweep of its own: a reduction, or result number `output` of the body.

    level: one more than that of the reductions it depends on.
    """

    value: Value
    level: int
    output: int | None = None

    @property
    def swept(self) -> Value:
        """What is evaluated in the sweep."""
        return self.value.node.operands[0] if self.output is None else stored_value(self.value)


def find_roots(body: Graph) -> list[Root]:
    """The reductions of a body in order, then its results."""
    level: dict[Value, int] = {}
    reductions: dict[Value, int] = {}
    for node in body.nodes:
        base = max((level[v] + (v in reductions) for v in node.operands), default=0)
        level.update(dict.fromkeys(node.results, base))
        if opdef(node.op).reduction:
            reductions[node.result] = base
    results = [Root(v, level[v] + (v in reductions), i) for i, v in enumerate(body.outputs)]
    return [*(Root(v, at) for v, at in reductions.items()), *results]
