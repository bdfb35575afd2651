"""Views, joins, gathers and sources: values that are other values at another index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.triton.index import flatten, unflatten
from inferir.codegen.triton.scalar import REGISTER, literal
from inferir.codegen.triton.value import Block, Guard, Guards, Place
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Node, Value
from inferir.ir.ops.common import axis as normal_axis

if TYPE_CHECKING:
    from inferir.codegen.triton.evaluate import Sweep


def _view(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    (x,) = node.operands
    if has_row(x.type, sweep.row) != has_row(node.types[0], sweep.row):
        raise CodegenError(f"tensor.view of {x.type} to {node.types[0]} moves the row axis")
    old, new = static_shape(x.type, sweep.row), static_shape(node.types[0], sweep.row)
    return sweep.value(x, unflatten(flatten(place, new), old), guards)


def _permute(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    (x,) = node.operands
    perm: Sequence[int] = node.attrs["perm"]
    if has_row(x.type, sweep.row):
        if perm[0] != 0:
            raise CodegenError("a permutation that moves the row axis has no row-wise form")
        perm = [p - 1 for p in perm[1:]]
    at = dict(zip(perm, place, strict=True))
    return sweep.value(x, tuple(at[i] for i in range(len(perm))), guards)


def _expand(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    return sweep.value(node.operands[0], sweep.aligned(node.operands[0], place), guards)


def _feature_axis(sweep: Sweep, node: Node) -> int:
    axis = normal_axis(node.attrs["dim"], node.types[0].rank) - has_row(node.types[0], sweep.row)
    if axis < 0:
        raise CodegenError(f"{node.op} along the row axis has no row-wise form")
    return axis


def _slice(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    i = _feature_axis(sweep, node)
    moved = place[i].scale(node.attrs["step"]).shift(node.attrs["start"])
    return sweep.value(node.operands[0], (*place[:i], moved, *place[i + 1 :]), guards)


def _cat(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    i = _feature_axis(sweep, node)
    at, start = place[i], 0
    parts: list[tuple[Value, int, int]] = []
    for part in node.operands:
        end = start + static_shape(part.type, sweep.row)[i]
        if start <= at.high and at.low < end:
            parts.append((part, start, end))
        start = end
    blocks = []
    for n, (part, start, end) in enumerate(parts):
        low, high = (start if n else None), (end if n < len(parts) - 1 else None)
        inner = guards if low is None and high is None else (*guards, Guard(at, low, high))
        blocks.append(sweep.value(part, (*place[:i], at.shift(-start), *place[i + 1 :]), inner))
    out = blocks[-1]
    for (_, _, end), block in reversed(list(zip(parts[:-1], blocks[:-1], strict=True))):
        text = sweep.let(f"tl.where({at.text()} < {end}, {block.text}, {out.text})")
        out = Block(text, out.positions | block.positions | at.positions)
    return out


def _gather(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    """Rows of a table that lies in memory, by numbers that are computed or loaded."""
    table, ids = node.operands
    if table not in sweep.pointers:
        raise CodegenError(f"{node.op} of a computed table has no row-wise form")
    sizes = table.type.shape[1:]
    if any(not isinstance(d, int) for d in sizes):
        raise CodegenError(f"{node.op}: {table.type} has no static rows")
    split = len(static_shape(ids.type, sweep.row))
    number = sweep.value(ids, place[:split], guards)
    if number.positions:
        raise CodegenError(f"{node.op} by {ids.type} has no row-wise form: one number per row is needed")
    shape = tuple(d for d in sizes if isinstance(d, int))
    row = sweep.let(f"{number.text}.to(tl.int64)")
    return sweep.load(table, f" + {row} * {prod(shape)}", flatten(place[split:], shape), guards)


def _full(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    dtype = node.types[0].dtype
    if dtype not in REGISTER:
        raise CodegenError(f"{node.op}: {dtype.value} has no Triton form")
    number = literal(node.attrs["value"], dtype, rounded=True)
    return Block(sweep.let(f"tl.full({[1] * len(sweep.shape)}, {number}, {REGISTER[dtype]})"))


def _arange(sweep: Sweep, node: Node, place: Place, guards: Guards) -> Block:
    dtype, start, step = node.types[0].dtype, node.attrs["start"], node.attrs["step"]
    if dtype not in REGISTER or not isinstance(start, int):
        raise CodegenError(f"{node.op}: {node.types[0]} from {start} has no Triton form")
    if has_row(node.types[0], sweep.row):
        return Block(sweep.rounded(sweep.let(f"(row * {step} + {start}).to({REGISTER[dtype]})"), dtype))
    at = place[0].scale(step).shift(start)
    spread = f"tl.full({[1] * len(sweep.shape)}, 0, tl.int32) + " if not at.terms else ""
    return Block(sweep.rounded(sweep.let(f"({spread}{at.text()}).to({REGISTER[dtype]})"), dtype), at.positions)


VIEWS: dict[str, Callable[[Sweep, Node, Place, Guards], Block]] = {
    "tensor.view": _view,
    "tensor.permute": _permute,
    "tensor.expand": _expand,
    "tensor.slice": _slice,
    "tensor.cat": _cat,
    "tensor.embedding": _gather,
    "tensor.gather_rows": _gather,
    "tensor.full": _full,
    "tensor.arange": _arange,
}
