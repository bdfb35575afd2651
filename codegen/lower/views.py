"""Views: values that are another value at another index. A rule maps a place of the result to one of the operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferir.codegen.lower.emitter import Place
from inferir.codegen.lower.index import Index, flatten, unflatten
from inferir.codegen.lower.rows import has_row, static_shape
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import Dim
from inferir.ir.graph.graph import Node, Value
from inferir.ir.ops.common import axis as normal_axis

Rule = Callable[[Node, Place, Dim, int | None], Place]
"""(view, place of its result, row axis, further positions that must stay neighbours) -> place of its operand."""


def aligned(operand: Value, place: Place, row: Dim) -> Place:
    """The place of an operand that is broadcast: feature axes align from the right, also where it has no row axis."""
    shape, index = static_shape(operand.type, row), place.index
    padded = (*(Index() for _ in range(len(shape) - len(index))), *index)
    return place.at([Index() if d == 1 else i for d, i in zip(shape, padded[len(padded) - len(shape) :], strict=True)])


def feature_axis(node: Node, row: Dim) -> int:
    """The feature axis that `dim` of a view or a concatenation names."""
    out = normal_axis(node.attrs["dim"], node.types[0].rank) - has_row(node.types[0], row)
    if out < 0:
        raise CodegenError(f"{node.op} along the row axis has no row-wise form")
    return out


def _view(node: Node, place: Place, row: Dim, span: int | None) -> Place:
    (x,) = node.operands
    if has_row(x.type, row) != has_row(node.types[0], row):
        raise CodegenError(f"{node.op} of {x.type} to {node.types[0]} moves the row axis")
    old, new = static_shape(x.type, row), static_shape(node.types[0], row)
    return place.at(unflatten(flatten(place.index, new), old, span))


def _permute(node: Node, place: Place, row: Dim, span: int | None) -> Place:
    (x,) = node.operands
    perm: Sequence[int] = node.attrs["perm"]
    if has_row(x.type, row):
        if perm[0] != 0:
            raise CodegenError("a permutation that moves the row axis has no row-wise form")
        perm = [p - 1 for p in perm[1:]]
    if place.lanes > 1 and perm[-1] != len(perm) - 1:
        raise CodegenError("a permutation of the last axis has no vector form")
    source = dict(zip(perm, place.index, strict=True))
    return place.at([source[i] for i in range(len(perm))])


def _expand(node: Node, place: Place, row: Dim, span: int | None) -> Place:
    return aligned(node.operands[0], place, row)


def _slice(node: Node, place: Place, row: Dim, span: int | None) -> Place:
    axis, step, index = feature_axis(node, row), node.attrs["step"], place.index
    if step != 1 and place.lanes > 1 and axis == len(index) - 1:
        raise CodegenError("a strided slice of the last axis has no vector form")
    return place.at((*index[:axis], index[axis].scale(step) + node.attrs["start"], *index[axis + 1 :]))


VIEWS: dict[str, Rule] = {
    "tensor.view": _view,
    "tensor.permute": _permute,
    "tensor.expand": _expand,
    "tensor.slice": _slice,
}
