"""nn: the recognised building blocks of decoder models. Each decomposes into `tensor.*`, which defines its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType, from_torch
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.interpreter import run_body
from inferir.ir.graph.registry import Decompose, define
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.common import elementwise, need


def _by_decomposition(decompose: Decompose) -> Callable[..., Any]:
    """A reference implementation that interprets the decomposition."""

    def evaluate(attrs: Attrs, *tensors: Any) -> Any:
        b = Builder()
        types = (TensorType(tuple(t.shape), from_torch(t.dtype)) for t in tensors)
        inputs = tuple(b.input(f"x{i}", type_) for i, type_ in enumerate(types))
        return run_body(Graph(inputs, (decompose(b, inputs, attrs),)), tensors)[0]

    return evaluate


def _norm_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x = types[0]
    need(x.rank >= 1, f"norm of {x}")
    for w in types[1:]:
        need(w.shape == (x.shape[-1],), f"weight {w} for rows of {x}")
    return x


def _rms_norm(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """x / sqrt(mean(x²) + eps) · (offset + w) over the last axis, in float32 (Zhang & Sennrich 2019).

    round_before_weight: the normalised row is rounded to x's type before it meets the weight (Llama), else after
    (Gemma).
    """
    x = operands[0]
    dtype = x.type.dtype
    f = x if dtype is DType.F32 else b.op("tensor.cast", x, dtype=DType.F32)
    mean = b.op("tensor.mean", b.op("tensor.mul", f, f), dims=(-1,), keepdim=True)
    y = b.op("tensor.mul", f, b.op("tensor.rsqrt", b.op("tensor.add", mean, b.scalar(attrs["eps"]))))
    if len(operands) == 1:
        return y if dtype is DType.F32 else b.op("tensor.cast", y, dtype=dtype)
    w = operands[1]
    if attrs["round_before_weight"]:
        y = y if dtype is DType.F32 else b.op("tensor.cast", y, dtype=dtype)
        w = b.op("tensor.add", w, b.scalar(attrs["offset"])) if attrs["offset"] else w
        if w.type.dtype is not dtype:
            w = b.op("tensor.cast", w, dtype=dtype)
        return b.op("tensor.mul", y, w)
    w = w if w.type.dtype is DType.F32 else b.op("tensor.cast", w, dtype=DType.F32)
    w = b.op("tensor.add", w, b.scalar(attrs["offset"])) if attrs["offset"] else w
    y = b.op("tensor.mul", y, w)
    return y if dtype is DType.F32 else b.op("tensor.cast", y, dtype=dtype)


define(
    "nn.rms_norm",
    (1, 2),
    _norm_type,
    _by_decomposition(_rms_norm),
    attrs={"eps": float, "offset": float, "round_before_weight": bool},
    defaults={"offset": 0.0, "round_before_weight": True},
    decompose=_rms_norm,
    last_axis=True,
    converts_from=1,
    doc=_rms_norm.__doc__ or "",
)


def _layer_norm(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """(x - mean(x)) / sqrt(var(x) + eps) · w + bias over the last axis, in float32 (Ba et al. 2016)."""
    x = operands[0]
    dtype = x.type.dtype

    def f32(v: Value) -> Value:
        return v if v.type.dtype is DType.F32 else b.op("tensor.cast", v, dtype=DType.F32)

    f = f32(x)
    centred = b.op("tensor.sub", f, b.op("tensor.mean", f, dims=(-1,), keepdim=True))
    var = b.op("tensor.mean", b.op("tensor.mul", centred, centred), dims=(-1,), keepdim=True)
    y = b.op("tensor.mul", centred, b.op("tensor.rsqrt", b.op("tensor.add", var, b.scalar(attrs["eps"]))))
    if len(operands) > 1:
        y = b.op("tensor.mul", y, f32(operands[1]))
    if len(operands) > 2:
        y = b.op("tensor.add", y, f32(operands[2]))
    return y if dtype is DType.F32 else b.op("tensor.cast", y, dtype=dtype)


define(
    "nn.layer_norm",
    (1, 3),
    _norm_type,
    _by_decomposition(_layer_norm),
    attrs={"eps": float},
    decompose=_layer_norm,
    last_axis=True,
    converts_from=1,
    doc=_layer_norm.__doc__ or "",
)


def _rotary_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, cos, sin = types
    need(attrs["style"] == "half", f"style {attrs['style']!r} is not known")
    need(cos.shape == sin.shape and cos.dtype is sin.dtype, f"cos {cos} and sin {sin} differ")
    need(x.rank == 3 and cos.rank == 2, f"rotation of {x} by {cos}")
    dim = cos.shape[-1]
    need(
        isinstance(dim, int) and dim % 2 == 0 and isinstance(x.shape[-1], int) and dim <= x.shape[-1],
        f"rotation of {x} by {cos}",
    )
    need(cos.dtype is x.dtype, f"rotation of {x} by {cos}")
    need(x.shape[0] == cos.shape[0], f"rotation of {x} by {cos}")
    return x


def _rotary(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """Rotary position embedding (Su et al. 2021) of the first d = cos.shape[-1] entries of every head.

    x [T, H, D], cos and sin [T, d]: x·cos + rotate_half(x)·sin with rotate_half((a, b)) = (-b, a); entries from d on
    pass through.
    """
    x, cos, sin = operands
    d, full = cos.type.shape[-1], x.type.shape[-1]
    assert isinstance(d, int)

    def cut(v: Value, start: int, stop: int) -> Value:
        return b.op("tensor.slice", v, dim=-1, start=start, stop=stop)

    def heads(v: Value) -> Value:
        return b.op("tensor.view", v, shape=(v.type.shape[0], 1, d))

    r = x if d == full else cut(x, 0, d)
    turned = b.op("tensor.cat", b.op("tensor.neg", cut(r, d // 2, d)), cut(r, 0, d // 2), dim=-1)
    y = b.op("tensor.add", b.op("tensor.mul", r, heads(cos)), b.op("tensor.mul", turned, heads(sin)))
    return y if d == full else b.op("tensor.cat", y, cut(x, d, int(full)), dim=-1)


define(
    "nn.rotary",
    3,
    _rotary_type,
    _by_decomposition(_rotary),
    attrs={"style": str},
    defaults={"style": "half"},
    decompose=_rotary,
    doc=_rotary.__doc__ or "",
)

GATES = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")


def _gated_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(attrs["kind"] in GATES, f"kind {attrs['kind']!r} is not one of {GATES}")
    return elementwise(types, attrs)


def _gated(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """act(gate) · up (Shazeer 2020)."""
    kind = attrs["kind"]
    if kind.startswith("gelu"):
        act = b.op("tensor.gelu", operands[0], approximate="tanh" if kind == "gelu_tanh" else "none")
    else:
        act = b.op(f"tensor.{kind}", operands[0])
    return b.op("tensor.mul", act, operands[1])


define(
    "nn.gated_act",
    2,
    _gated_type,
    _by_decomposition(_gated),
    attrs={"kind": str},
    decompose=_gated,
    elementwise=True,
    doc=_gated.__doc__ or "",
)


def _softcap(b: Builder, operands: Sequence[Value], attrs: Attrs) -> Value:
    """cap · tanh(x / cap)."""
    cap = attrs["cap"]
    return b.op("tensor.mul", b.op("tensor.tanh", b.op("tensor.div", operands[0], b.scalar(cap))), b.scalar(cap))


def _softcap_type(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need(attrs["cap"] > 0, "cap is not positive")
    return types[0]


define(
    "nn.softcap",
    1,
    _softcap_type,
    _by_decomposition(_softcap),
    attrs={"cap": float},
    decompose=_softcap,
    elementwise=True,
    doc=_softcap.__doc__ or "",
)
