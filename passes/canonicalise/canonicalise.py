"""canonicalise: one spelling for what can be written in several ways, so that later patterns are few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferir.ir.graph.dims import Dim
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.registry import OpDef, opdef
from inferir.ir.graph.rewrite import transform
from inferir.ir.ops.common import axis, broadcast
from inferir.passes.context import Pass

# A cast from a key to one of its values loses nothing.
_WIDER = {
    DType.BF16: {DType.BF16, DType.F32, DType.F64},
    DType.F16: {DType.F16, DType.F32, DType.F64},
    DType.F32: {DType.F32, DType.F64},
    DType.I32: {DType.I32, DType.I64, DType.F64},
    DType.I64: {DType.I64},
    DType.BOOL: {DType.BOOL, DType.I32, DType.I64, DType.F32, DType.BF16},
}


class Canonicalise(Pass):
    """Removes what does nothing (identity views, casts, slices, x·1, x+0), joins chains of views, permutes, casts and
    slices, and writes powers as products and products with matrices as `tensor.linear`.
    """

    name = "canonicalise"
    why = "one spelling of views, casts and powers keeps later patterns few"

    def run(self, graph: Graph) -> Graph:
        while True:
            after = transform(graph, _visit)
            if after is graph:
                return graph
            graph = after


def _visit(node: Node, operands: tuple[Value, ...]) -> Value | None:
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, operands)
    op = opdef(node.op)
    out = _neutral(node, operands, op) if op.unit is not None else None
    return out or (_unbroadcast(node, operands) if len(operands) > 1 and op.elementwise else None)


def view_to(value: Value, shape: tuple[Dim, ...], b: Builder) -> Value:
    """`value` with another shape, without stacking views."""
    if value.type.shape == shape:
        return value
    if value.op == "tensor.view":
        value = value.node.operands[0]
        if value.type.shape == shape:
            return value
    return b.op("tensor.view", value, shape=shape)


def _view(node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    shape = node.types[0].shape
    if x.type.shape == shape or x.op == "tensor.view":
        return view_to(x, shape, Builder(node.loc))
    return None


def _permute(node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    perm = node.attrs["perm"]
    if x.op == "tensor.permute":
        inner = x.node.attrs["perm"]
        return Builder(node.loc).op("tensor.permute", x.node.operands[0], perm=tuple(inner[p] for p in perm))
    moved = [p for p in perm if x.type.shape[p] != 1]
    if moved == sorted(moved):
        return view_to(x, node.types[0].shape, Builder(node.loc))
    return None


def _expand(node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    if x.type.shape == node.types[0].shape:
        return x
    if x.op == "tensor.expand":
        return Builder(node.loc).op("tensor.expand", x.node.operands[0], shape=node.attrs["shape"])
    return None


def _cast(node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    dtype = node.attrs["dtype"]
    if x.type.dtype is dtype:
        return x
    if x.op == "tensor.cast":
        source = x.node.operands[0]
        if x.type.dtype in _WIDER.get(source.type.dtype, ()):
            return source if source.type.dtype is dtype else Builder(node.loc).op("tensor.cast", source, dtype=dtype)
    return None


def _slice(node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    i = axis(node.attrs["dim"], x.type.rank)
    start, stop, step = node.attrs["start"], node.attrs["stop"], node.attrs["step"]
    if start == 0 and stop == x.type.shape[i] and step == 1:
        return x
    b = Builder(node.loc)
    if x.op == "tensor.slice" and axis(x.node.attrs["dim"], x.type.rank) == i and x.node.attrs["step"] == 1:
        base = x.node.attrs["start"]
        return b.op("tensor.slice", x.node.operands[0], dim=i, start=base + start, stop=base + stop, step=step)
    if x.op == "tensor.cat" and axis(x.node.attrs["dim"], x.type.rank) == i and isinstance(stop, int):
        base = 0
        for part in x.node.operands:
            size = part.type.shape[i]
            if not isinstance(size, int):
                return None
            if base <= start and stop <= base + size:
                if (start, stop) == (base, base + size) and step == 1:
                    return part
                return b.op("tensor.slice", part, dim=i, start=start - base, stop=stop - base, step=step)
            base += size
    return None


def _cat(node: Node, operands: tuple[Value, ...]) -> Value | None:
    i = axis(node.attrs["dim"], node.types[0].rank)
    kept = [v for v in operands if v.type.shape[i] != 0]
    if len(kept) == 1:
        return kept[0]
    if 1 < len(kept) < len(operands):
        return Builder(node.loc).op("tensor.cat", *kept, dim=i)
    return None


def _number(value: Value) -> Any:
    return value.node.attrs["value"] if value.op == "core.scalar" else None


def _neutral(node: Node, operands: tuple[Value, ...], op: OpDef) -> Value | None:
    a, b = operands
    if _number(b) == op.unit and a.type == node.types[0]:
        return a
    if op.commutative and _number(a) == op.unit and b.type == node.types[0]:
        return b
    if node.op == "tensor.pow":
        return _power(node, a, _number(b))
    return None


def _power(node: Node, x: Value, exponent: Any) -> Value | None:
    """torch evaluates these exponents the same way, so that results stay bit-identical: x³ only in full precision."""
    if exponent is None or not x.type.dtype.is_float or x.op == "core.scalar":
        return None
    b = Builder(node.loc)
    if exponent == 2:
        return b.op("tensor.mul", x, x)
    if exponent == 3 and x.type.dtype is DType.F32:
        return b.op("tensor.mul", b.op("tensor.mul", x, x), x)
    if exponent == 0.5:
        return b.op("tensor.sqrt", x)
    if exponent == -0.5:
        return b.op("tensor.rsqrt", x)
    if exponent == -1:
        return b.op("tensor.reciprocal", x)
    return None


def _matmul(node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, w = operands
    if w.type.rank != 2 or not all(isinstance(d, int) for d in w.type.shape):
        return None
    b = Builder(node.loc)
    return b.op("tensor.linear", x, b.op("tensor.permute", w, perm=(1, 0)))


def _unbroadcast(node: Node, operands: tuple[Value, ...]) -> Value | None:
    """Elementwise ops broadcast by themselves: drop `expand`, and use a number in place of a filled tensor."""
    new = list(operands)
    for i, value in enumerate(operands):
        others = [v.type.shape for j, v in enumerate(new) if j != i]
        if value.op == "tensor.expand":
            small = value.node.operands[0]
        elif value.op == "tensor.full" and not (node.op == "tensor.where" and i == 0):
            number = value.node.attrs["value"]
            small = Builder(node.loc).scalar(int(number) if value.type.dtype.is_int else number)
            if all(v.type.rank == 0 for j, v in enumerate(new) if j != i):
                continue
        else:
            continue
        if small.type.rank == 0 and not any(others):
            continue
        if broadcast([small.type.shape, *others]) == node.types[0].shape:
            new[i] = small
    if all(a is b for a, b in zip(new, operands, strict=True)):
        return None
    return Builder(node.loc).op(node.op, *new, **node.attrs)


_RULES: dict[str, Callable[[Node, tuple[Value, ...]], Value | None]] = {
    "tensor.view": _view,
    "tensor.permute": _permute,
    "tensor.expand": _expand,
    "tensor.cast": _cast,
    "tensor.slice": _slice,
    "tensor.cat": _cat,
    "tensor.matmul": _matmul,
}
