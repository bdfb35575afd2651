"""Import rules of views, slices, concatenations and sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferir.frontend.capture.hooks import MaskSpec
from inferir.frontend.capture.importer import Importer, Imports, rule
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Value

END = 1 << 62  # slices spell "to the end" as a huge number


def _full_mask(imp: Importer, mask: MaskSpec) -> MaskSpec:
    """A mask that was sliced or expanded is still itself while it covers all keys of all queries."""
    shape = imp.shape(imp.val)
    if len(shape) != 4 or shape[2] != shape[3] or isinstance(shape[2], int):
        raise imp.refuse(f"an attention mask is reshaped to {shape}")
    return mask


@rule(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.view_as.default",
)
def _view(imp: Importer, x: Imports, *_: Any) -> Imports:
    return _full_mask(imp, x) if isinstance(x, MaskSpec) else imp.view(imp.value(x), imp.shape(imp.val))


@rule("aten.expand.default", "aten.expand_as.default")
def _expand(imp: Importer, x: Imports, *_: Any, **__: Any) -> Imports:
    if isinstance(x, MaskSpec):
        return _full_mask(imp, x)
    value, shape = imp.value(x), imp.shape(imp.val)
    return value if value.type.shape == shape else imp.op("tensor.expand", value, shape=shape)


@rule("aten.copy.default", "aten.fill.Tensor")
def _copy(imp: Importer, target: Imports, x: Imports, *_: Any) -> Imports:
    """What `target` holds after x was copied into it: x in its type and shape."""
    value = imp.value(x, imp.val.dtype)
    if value.op == "core.scalar":
        return _like(imp, target, value.node.attrs["value"])
    return _expand(imp, value)


@rule("aten.permute.default")
def _permute(imp: Importer, x: Imports, perm: Sequence[int]) -> Imports:
    value = imp.value(x)
    perm = tuple(p % value.type.rank for p in perm)
    return value if perm == tuple(range(len(perm))) else imp.op("tensor.permute", value, perm=perm)


@rule("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def _transpose(imp: Importer, x: Imports, a: int, b: int) -> Imports:
    rank = imp.val.dim()
    perm = list(range(rank))
    perm[a], perm[b] = perm[b], perm[a]
    return _permute(imp, x, perm)


@rule("aten.t.default", "aten.numpy_T.default")
def _t(imp: Importer, x: Imports) -> Imports:
    return _permute(imp, x, range(imp.val.dim() - 1, -1, -1))


def _cut(imp: Importer, x: Value, dim: int, start: Any, stop: Any, step: int = 1) -> Value:
    axis = dim % x.type.rank
    size = x.type.shape[axis]
    if start == 0 and stop == size and step == 1:
        return x
    return imp.op("tensor.slice", x, dim=axis, start=start, stop=stop, step=step)


@rule("aten.slice.Tensor")
def _slice(imp: Importer, x: Imports, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Imports:
    if isinstance(x, MaskSpec):
        return _full_mask(imp, x)
    value = imp.value(x)
    return _cut(imp, value, dim, *_bounds(value.type.shape[dim % value.type.rank], start, stop), step)


def _bounds(size: Any, start: Any, stop: Any) -> tuple[Any, Any]:
    """Where a slice of an axis of `size` begins and ends, as Python counts."""

    def bound(b: Any, default: Any) -> Any:
        if b is None:
            return default
        if not isinstance(b, int):
            return b
        if b >= END:
            return size
        if isinstance(size, int):
            return max(0, min(size, b + size if b < 0 else b))
        return size + b if b < 0 else b

    return bound(start, 0), bound(stop, size)


@rule("aten.slice_scatter.default")
def _slice_scatter(
    imp: Importer, x: Imports, part: Imports, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Imports:
    """x with `part` in the place of a slice."""
    value = imp.value(x, imp.val.dtype)
    size = value.type.shape[dim % value.type.rank]
    first, last = _bounds(size, start, stop)
    if step != 1 or not all(isinstance(n, int) for n in (size, first, last)):
        raise imp.refuse("a slice of tokens, or one with gaps, cannot be replaced")
    pieces = [imp.value(part, imp.val.dtype)] if last > first else []
    if first > 0:
        pieces.insert(0, _cut(imp, value, dim, 0, first, 1))
    if max(first, last) < size:
        pieces.append(_cut(imp, value, dim, max(first, last), size, 1))
    return pieces[0] if len(pieces) == 1 else imp.op("tensor.cat", *pieces, dim=dim)


@rule("aten.select.int")
def _select(imp: Importer, x: Imports, dim: int, index: Any) -> Imports:
    value = imp.value(x)
    size = value.type.shape[dim % value.type.rank]
    if not isinstance(index, int):
        raise imp.refuse("an index that depends on the number of tokens is not supported")
    start = index if index >= 0 else size + index
    return imp.view(_cut(imp, value, dim, start, start + 1), imp.shape(imp.val))


def _parts(imp: Importer, x: Imports, dim: int, sizes: Sequence[Any]) -> list[Imports]:
    value, out, start = imp.value(x), [], 0
    for size in sizes:
        out.append(_cut(imp, value, dim, start, start + size))
        start = start + size
    return out


@rule("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.chunk.default")
def _split(imp: Importer, x: Imports, _: Any, dim: int = 0) -> Imports:
    vals = imp.node.meta["val"]
    return _parts(imp, x, dim, [imp.dim(v.shape[dim]) for v in vals])


@rule("aten.unbind.int")
def _unbind(imp: Importer, x: Imports, dim: int = 0) -> Imports:
    vals = imp.node.meta["val"]
    parts = _parts(imp, x, dim, [1] * len(vals))
    return [imp.view(imp.value(p), imp.shape(v)) for p, v in zip(parts, vals, strict=True)]


@rule("aten.cat.default", "aten.concat.default")
def _cat(imp: Importer, xs: list[Imports], dim: int = 0) -> Imports:
    values = [imp.value(x, imp.val.dtype) for x in xs]
    if len({v.type.dtype for v in values}) > 1:
        values = [imp.op("tensor.cast", v, dtype=DType.I64) if v.type.dtype is DType.I32 else v for v in values]
    return values[0] if len(values) == 1 else imp.op("tensor.cat", *values, dim=dim)


@rule("aten.stack.default")
def _stack(imp: Importer, xs: list[Imports], dim: int = 0) -> Imports:
    dim %= imp.val.dim()
    values = [imp.value(x, imp.val.dtype) for x in xs]
    views = [imp.view(v, (*v.type.shape[:dim], 1, *v.type.shape[dim:])) for v in values]
    return imp.op("tensor.cat", *views, dim=dim)


@rule("aten.repeat_interleave.self_int")
def _repeat_interleave(imp: Importer, x: Imports, repeats: int, dim: int | None = None, **_: Any) -> Imports:
    if dim is None:
        raise imp.refuse("repeat_interleave without an axis is not supported")
    value = imp.value(x)
    dim %= value.type.rank
    shape = value.type.shape
    wide = imp.view(value, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    wide = imp.op("tensor.expand", wide, shape=(*shape[: dim + 1], repeats, *shape[dim + 1 :]))
    return imp.view(wide, imp.shape(imp.val))


@rule("aten.repeat.default")
def _repeat(imp: Importer, x: Imports, repeats: Sequence[Any]) -> Imports:
    """Every axis once more in front of itself, expanded, and folded back."""
    value = imp.value(x)
    if any(not isinstance(r, int) for r in repeats):
        raise imp.refuse("a repetition that depends on the number of tokens is not supported")
    shape = (1,) * (len(repeats) - value.type.rank) + value.type.shape
    apart = tuple(d for size in shape for d in (1, size))
    wide = tuple(d for count, size in zip(repeats, shape, strict=True) for d in (count, size))
    value = imp.view(value, apart)
    value = value if apart == wide else imp.op("tensor.expand", value, shape=wide)
    return imp.view(value, imp.shape(imp.val))


@rule("aten.fill.Scalar", "aten.full_like.default", "aten.zeros_like.default", "aten.ones_like.default")
def _like(imp: Importer, x: Imports, number: float | None = None, **_: Any) -> Imports:
    if number is None:
        number = 0 if "zeros" in str(imp.node.target) else 1
    return imp.op("tensor.full", shape=imp.shape(imp.val), value=number, dtype=imp.dtype(imp.val.dtype))


@rule("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(imp: Importer, *_: Any, **__: Any) -> Imports:
    raise imp.refuse(
        "positions are counted from the start of the step (arange over the tokens) instead of read from position_ids; "
        "such a model cannot serve several sequences in one step"
    )
