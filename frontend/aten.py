"""Import rules: one small function per ATen operator (or family), called with the importer and the operator's
arguments.

The table holds what the decoders in `tests/frontend` need; an operator that is not here is refused by name. Rules
may use the traced result type (`imp.val`), which already includes PyTorch's promotion and shape rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inferir.frontend.hooks import MaskSpec, resolve_window
from inferir.frontend.importer import RULES, AttentionCall, Importer, Imports, Mask, rule
from inferir.ir.dtypes import DType
from inferir.ir.graph import Value

__all__ = ["RULES"]

END = 1 << 62  # slices spell "to the end" as a huge number


# --- marker ops -----------------------------------------------------------------------------------------------------


@rule("inferir.mask.default")
def _mask(imp: Importer, like: Imports, queries: Any, keys: Any, window: int, causal: bool, dtype: int) -> Imports:
    return Mask(MaskSpec(causal, window))


@rule("inferir.attention.default")
def _attention(
    imp: Importer,
    q: Imports,
    k: Imports,
    v: Imports,
    mask: Imports,
    scale: float,
    window: int,
    softcap: float,
    causal: bool,
) -> Imports:
    """q [1, H, T, D], k [1, Hk, T, D], v [1, Hk, T, Dv] -> [1, T, H, Dv]."""
    if mask is not None and not isinstance(mask, Mask):
        raise imp.refuse("the attention mask is computed by the model itself, which is not supported")
    where = f"module {imp.loc.module!r}"
    window = resolve_window(None if mask is None else mask.spec, window, causal, where)

    def rows(x: Imports) -> Value:
        value = imp.value(x, imp.val.dtype)
        _, heads, tokens, size = value.type.shape
        return imp.op("tensor.permute", imp.view(value, (heads, tokens, size)), perm=(1, 0, 2))

    query, key, value = rows(q), rows(k), rows(v)
    if query.type.shape[0] != key.type.shape[0]:
        raise imp.refuse("queries and keys have different token counts (cross attention?)")
    layer = len(imp.attention)
    _, heads, head_dim = (int(d) for d in (1, *query.type.shape[1:]))
    kv_heads, value_dim = (int(d) for d in value.type.shape[1:])
    imp.attention.append(
        AttentionCall(layer, imp.loc.module, heads, kv_heads, head_dim, value_dim, window, softcap, scale)
    )
    out = imp.op(
        "attn.attention", query, key, value, scale=scale, window=window, softcap=softcap, causal=True, layer=layer
    )
    return imp.view(out, (1, *out.type.shape))


# --- nothing happens ------------------------------------------------------------------------------------------------


@rule(
    "aten.alias.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
)
def _same(imp: Importer, x: Imports, *_: Any, **__: Any) -> Imports:
    return x


@rule("aten.dropout.default")
def _dropout(imp: Importer, x: Imports, p: float, train: bool) -> Imports:
    if train and p:
        raise imp.refuse("dropout is active")
    return x


@rule("getitem")
def _getitem(imp: Importer, xs: list[Imports], index: int) -> Imports:
    return xs[index]


# --- casts ----------------------------------------------------------------------------------------------------------


@rule(
    "aten.to.dtype",
    "aten.to.device",
    "aten.to.other",
    "aten.to.dtype_layout",
    "aten._to_copy.default",
    "aten.type_as.default",
)
def _cast(imp: Importer, x: Imports, *_: Any, **__: Any) -> Imports:
    return x if isinstance(x, Mask) else imp.value(x, imp.val.dtype)


# --- elementwise ----------------------------------------------------------------------------------------------------


def _unary(name: str) -> Any:
    def import_unary(imp: Importer, x: Imports) -> Imports:
        return imp.op(f"tensor.{name}", imp.value(x, imp.val.dtype))

    return import_unary


for _name in (
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "abs",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "silu",
    "relu",
    "erf",
):
    rule(f"aten.{_name}.default")(_unary(_name))


@rule("aten.gelu.default")
def _gelu(imp: Importer, x: Imports, approximate: str = "none") -> Imports:
    return imp.op("tensor.gelu", imp.value(x), approximate=approximate)


@rule("aten.softplus.default")
def _softplus(imp: Importer, x: Imports, beta: float = 1, threshold: float = 20) -> Imports:
    if beta != 1 or threshold != 20:
        raise imp.refuse(f"beta={beta}, threshold={threshold} are not supported")
    return imp.op("tensor.softplus", imp.value(x))


@rule("aten.square.default")
def _square(imp: Importer, x: Imports) -> Imports:
    value = imp.value(x)
    return imp.op("tensor.mul", value, value)


def _pair(imp: Importer, a: Imports, b: Imports, dtype: torch.dtype) -> tuple[Value, Value]:
    """Both operands in the promoted type; two 32-bit indices stay 32-bit, and a number never widens an index."""
    x, y = imp.value(a, dtype), imp.value(b, dtype)
    strong = {v.type.dtype for v in (x, y) if v.op != "core.scalar"}
    if strong == {DType.I32, DType.I64}:
        x, y = (v if v.type.dtype is DType.I64 else imp.op("tensor.cast", v, dtype=DType.I64) for v in (x, y))
    return x, y


def _meta(imp: Importer, index: int) -> Any:
    argument = imp.node.args[index]
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _binary(name: str) -> Any:
    def import_binary(imp: Importer, a: Imports, b: Imports, alpha: float = 1) -> Imports:
        x, y = _pair(imp, a, b, imp.val.dtype)
        if alpha != 1:
            y = imp.op("tensor.mul", y, imp.scalar(alpha))
        return imp.op(f"tensor.{name}", x, y)

    return import_binary


for _name in ("add", "sub", "mul", "div"):
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_binary(_name))
for _name, _short in (("maximum", "max"), ("minimum", "min")):
    rule(f"aten.{_name}.default", f"aten.{_short}.other")(_binary(_name))


@rule("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(imp: Importer, a: Imports, b: Imports, alpha: float = 1) -> Imports:
    return _binary("sub")(imp, b, a if alpha == 1 else imp.op("tensor.mul", imp.value(a), imp.scalar(alpha)))


def _comparison(name: str) -> Any:
    def import_comparison(imp: Importer, a: Imports, b: Imports) -> Imports:
        x, y = _pair(imp, a, b, torch.result_type(_meta(imp, 0), _meta(imp, 1)))
        return imp.op(f"tensor.{name}", x, y)

    return import_comparison


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_name))


@rule("aten.pow.Tensor_Scalar")
def _pow(imp: Importer, x: Imports, exponent: float) -> Imports:
    value = imp.value(x, imp.val.dtype)
    if exponent == 2:
        return imp.op("tensor.mul", value, value)
    if exponent == 3:
        return imp.op("tensor.mul", imp.op("tensor.mul", value, value), value)
    named = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if named:
        return imp.op(f"tensor.{named}", value)
    return imp.op("tensor.pow", value, imp.scalar(exponent))


@rule("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow_tensor(imp: Importer, x: Imports, exponent: Imports) -> Imports:
    a, b = _pair(imp, x, exponent, imp.val.dtype)
    return imp.op("tensor.pow", a, b)


@rule("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default")
def _clamp(imp: Importer, x: Imports, *bounds: Imports, min: Imports = None, max: Imports = None) -> Imports:
    if str(imp.node.target) == "aten.clamp_max.default":
        low, high = None, bounds[0] if bounds else max
    else:
        low, high = bounds[0] if bounds else min, bounds[1] if len(bounds) > 1 else max
    value = imp.value(x, imp.val.dtype)
    if low is not None:
        value = imp.op("tensor.maximum", value, imp.value(low))
    if high is not None:
        value = imp.op("tensor.minimum", value, imp.value(high))
    return value


@rule("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def _where(imp: Importer, condition: Imports, a: Imports, b: Imports) -> Imports:
    chosen = imp.op("tensor.where", imp.value(condition), *_pair(imp, a, b, imp.val.dtype))
    return imp.value(chosen, imp.val.dtype)  # a choice of two numbers has no element type of its own


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(imp: Importer, x: Imports, mask: Imports, number: Imports) -> Imports:
    return imp.op("tensor.where", imp.value(mask), *_pair(imp, number, x, imp.val.dtype))


@rule("aten.logical_not.default", "aten.bitwise_not.default")
def _not(imp: Importer, x: Imports) -> Imports:
    if imp.val.dtype is not torch.bool:
        raise imp.refuse("bitwise operators are supported on bool only")
    return imp.op("tensor.logical_not", imp.value(x))


def _logical(name: str) -> Any:
    def import_logical(imp: Importer, a: Imports, b: Imports) -> Imports:
        if any(isinstance(m, torch.Tensor) and m.dtype is not torch.bool for m in (_meta(imp, 0), _meta(imp, 1))):
            raise imp.refuse("logical operators are supported on bool only")
        return imp.op(f"tensor.logical_{name}", imp.value(a), imp.value(b))

    return import_logical


for _name in ("and", "or"):
    rule(
        f"aten.logical_{_name}.default",
        f"aten.bitwise_{_name}.Tensor",
        f"aten.bitwise_{_name}.Scalar",
        f"aten.__{_name}__.Tensor",
        f"aten.__{_name}__.Scalar",
    )(_logical(_name))


# --- reductions -----------------------------------------------------------------------------------------------------


def _axes(x: Value, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(d - x.type.rank if d >= 0 else d for d in (dims or range(x.type.rank)))


def _reduction(name: str) -> Any:
    def import_reduction(
        imp: Importer, x: Imports, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
    ) -> Imports:
        value = imp.value(x, imp.val.dtype)
        return imp.op(f"tensor.{name}", value, dims=_axes(value, dim), keepdim=bool(keepdim))

    return import_reduction


for _name, _targets in {
    "sum": ("aten.sum.dim_IntList", "aten.sum.default"),
    "mean": ("aten.mean.dim", "aten.mean.default"),
    "max": ("aten.amax.default",),
    "min": ("aten.amin.default",),
}.items():
    rule(*_targets)(_reduction(_name))


@rule("aten.softmax.int", "aten._softmax.default")
def _softmax(imp: Importer, x: Imports, dim: int, dtype: Any = None) -> Imports:
    return imp.op("tensor.softmax", imp.value(x, imp.val.dtype), dim=dim)


def _last_axis_only(imp: Importer, x: Value, shape: Sequence[int]) -> None:
    if tuple(shape) != x.type.shape[-1:]:
        raise imp.refuse(f"normalisation over {tuple(shape)} is not over the last axis of {x.type}")


@rule("aten.layer_norm.default")
def _layer_norm(
    imp: Importer,
    x: Imports,
    shape: Sequence[int],
    weight: Imports = None,
    bias: Imports = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Imports:
    value = imp.value(x)
    _last_axis_only(imp, value, shape)
    if bias is not None and weight is None:
        raise imp.refuse("a bias without weight is not supported")
    operands = [value, *(imp.value(v) for v in (weight, bias) if v is not None)]
    return imp.op("nn.layer_norm", *operands, eps=float(eps))


@rule("aten.native_layer_norm.default")
def _native_layer_norm(
    imp: Importer, x: Imports, shape: Sequence[int], weight: Imports, bias: Imports, eps: float
) -> Imports:
    return [_layer_norm(imp, x, shape, weight, bias, eps)]


def _opmath(dtype: torch.dtype) -> torch.dtype:
    """The type PyTorch computes in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


@rule("aten.rms_norm.default")
def _rms_norm(
    imp: Importer, x: Imports, shape: Sequence[int], weight: Imports = None, eps: float | None = None
) -> Imports:
    value = imp.value(x)
    _last_axis_only(imp, value, shape)
    eps = float(torch.finfo(_opmath(imp.val.dtype)).eps) if eps is None else float(eps)
    operands = [value] if weight is None else [value, imp.value(weight)]
    return imp.op("nn.rms_norm", *operands, eps=eps, offset=0.0, round_before_weight=False)


# --- shapes ---------------------------------------------------------------------------------------------------------


def _full_mask(imp: Importer, mask: Mask) -> Mask:
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
    return _full_mask(imp, x) if isinstance(x, Mask) else imp.view(imp.value(x), imp.shape(imp.val))


@rule("aten.expand.default", "aten.expand_as.default")
def _expand(imp: Importer, x: Imports, *_: Any, **__: Any) -> Imports:
    if isinstance(x, Mask):
        return _full_mask(imp, x)
    value, shape = imp.value(x), imp.shape(imp.val)
    return value if value.type.shape == shape else imp.op("tensor.expand", value, shape=shape)


def _permute_to(imp: Importer, x: Imports, perm: Sequence[int]) -> Value:
    value = imp.value(x)
    perm = tuple(p % value.type.rank for p in perm)
    return value if perm == tuple(range(len(perm))) else imp.op("tensor.permute", value, perm=perm)


@rule("aten.permute.default")
def _permute(imp: Importer, x: Imports, perm: Sequence[int]) -> Imports:
    return _permute_to(imp, x, perm)


@rule("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def _transpose(imp: Importer, x: Imports, a: int, b: int) -> Imports:
    rank = imp.val.dim()
    perm = list(range(rank))
    perm[a], perm[b] = perm[b], perm[a]
    return _permute_to(imp, x, perm)


@rule("aten.t.default", "aten.numpy_T.default")
def _t(imp: Importer, x: Imports) -> Imports:
    return _permute_to(imp, x, range(imp.val.dim() - 1, -1, -1))


def _cut(imp: Importer, x: Value, dim: int, start: Any, stop: Any, step: int = 1) -> Value:
    axis = dim % x.type.rank
    size = x.type.shape[axis]
    if start == 0 and stop == size and step == 1:
        return x
    return imp.op("tensor.slice", x, dim=axis, start=start, stop=stop, step=step)


@rule("aten.slice.Tensor")
def _slice(imp: Importer, x: Imports, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Imports:
    if isinstance(x, Mask):
        return _full_mask(imp, x)
    value = imp.value(x)
    size = value.type.shape[dim % value.type.rank]

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

    return _cut(imp, value, dim, bound(start, 0), bound(stop, size), step)


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


@rule("aten.full_like.default", "aten.zeros_like.default", "aten.ones_like.default")
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


# --- contractions and gathers ---------------------------------------------------------------------------------------


def _transposed(imp: Importer, w: Value) -> Value:
    """[K, N] -> [N, K] without stacking two permutations."""
    if w.op == "tensor.permute" and w.node.attrs["perm"] == (1, 0):
        return w.node.operands[0]
    return imp.op("tensor.permute", w, perm=(1, 0))


@rule("aten.linear.default")
def _linear(imp: Importer, x: Imports, w: Imports, bias: Imports = None) -> Imports:
    operands = [imp.value(x), imp.value(w)] + ([] if bias is None else [imp.value(bias)])
    return imp.op("tensor.linear", *operands)


@rule("aten.addmm.default")
def _addmm(imp: Importer, bias: Imports, x: Imports, w: Imports, beta: float = 1, alpha: float = 1) -> Imports:
    if beta != 1 or alpha != 1 or _meta(imp, 0).dim() != 1:
        raise imp.refuse("only addmm(bias, x, w) with a vector bias is supported")
    return imp.op("tensor.linear", imp.value(x), _transposed(imp, imp.value(w)), imp.value(bias))


@rule("aten.mm.default", "aten.bmm.default", "aten.matmul.default")
def _matmul(imp: Importer, a: Imports, b: Imports) -> Imports:
    x, y = imp.value(a), imp.value(b)
    if x.type.rank < 2 or y.type.rank < 2:
        raise imp.refuse("products with vectors are not supported")
    if x.type.shape[-1] == 1:  # an outer product: exact as a broadcast multiplication
        return imp.op("tensor.mul", x, y)
    if y.type.rank == 2:
        return imp.op("tensor.linear", x, _transposed(imp, y))
    return imp.op("tensor.matmul", x, y)


@rule("aten.embedding.default")
def _embedding(imp: Importer, w: Imports, ids: Imports, *_: Any) -> Imports:
    return imp.op("tensor.embedding", imp.value(w), imp.value(ids))


@rule("aten.index.Tensor", "aten.index_select.default")
def _index(imp: Importer, x: Imports, *where: Any) -> Imports:
    if isinstance(where[0], int):
        dim, index = where[0], where[1]
    else:
        dim, index = 0, where[0][0]
        if index is None or len(where[0]) > 1:
            raise imp.refuse("indexing with several tensors, or past the first axis, is not supported")
    value, rows = imp.value(x), imp.value(index)
    if dim or not rows.type.dtype.is_int:
        raise imp.refuse(f"indexing axis {dim} with {rows.type} is not supported")
    if value.type.rank == 2:
        return imp.op("tensor.embedding", value, rows)
    if rows.type.rank != 1:
        raise imp.refuse(f"indexing {value.type} with {rows.type} is not supported")
    return imp.op("tensor.gather_rows", value, rows)
