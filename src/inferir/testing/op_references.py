"""What ops mean, written once more and without them: PyTorch in float64, rounded to the op's type in the end.

`EXPECTED[op](attributes, *tensors)` takes float64 tensors (numbers, row numbers and truth values as they are).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

Expected = Callable[..., torch.Tensor]


def _rotary(a: Mapping[str, Any], x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (i, i + d / 2) of the first d entries are turned as complex numbers."""
    d = cos.shape[-1]
    pairs = torch.complex(x[..., : d // 2], x[..., d // 2 : d])
    low = pairs * torch.complex(cos[:, None, : d // 2], sin[:, None, : d // 2])
    high = pairs * torch.complex(cos[:, None, d // 2 :], sin[:, None, d // 2 :])
    return torch.cat([low.real, high.imag, x[..., d:]], -1)


def _rms_norm(a: Mapping[str, Any], x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
    y = F.rms_norm(x, x.shape[-1:], eps=a["eps"])
    return y * (w[0] + a["offset"]) if w else y


def _layer_norm(a: Mapping[str, Any], x: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
    weight, bias = (*w, None, None)[:2]
    return F.layer_norm(x, x.shape[-1:], weight, bias, a["eps"])


_GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}


def _attention(a: Mapping[str, Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query at a time, over the positions that it may read."""
    group = q.shape[1] // k.shape[1]
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    for t in range(q.shape[0]):
        first = max(0, a["reads"].first(t))
        for h in range(q.shape[1]):
            scores = k[first : t + 1, h // group] @ q[t, h] * a["scale"]
            if a["softcap"]:
                scores = a["softcap"] * torch.tanh(scores / a["softcap"])
            out[t, h] = scores.softmax(0) @ v[first : t + 1, h // group]
    return out


def _slice(a: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(a["start"], a["stop"], a["step"])
    return x.index_select(a["dim"] % x.dim(), at)


def _binary(function: Callable[..., torch.Tensor]) -> Expected:
    def call(a: Mapping[str, Any], x: Any, y: Any) -> torch.Tensor:
        x, y = (v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=torch.float64) for v in (x, y))
        return function(x, y)

    return call


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Expected:
    return lambda a, x: function(x)


EXPECTED: dict[str, Expected] = {
    **{
        f"tensor.{name}": _unary(getattr(torch, name))
        for name in (
            "neg",
            "exp",
            "expm1",
            "log",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "abs",
            "floor",
            "sin",
            "cos",
            "tanh",
            "sigmoid",
        )
    },
    **{f"tensor.{name}": _unary(getattr(torch, name)) for name in ("relu", "erf", "logical_not")},
    "tensor.silu": _unary(lambda x: x * torch.sigmoid(x) if torch.isfinite(x).all() else F.silu(x)),
    "tensor.softplus": _unary(lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "tensor.gelu": lambda a, x: F.gelu(x, approximate=a["approximate"]),
    **{
        f"tensor.{name}": _binary(getattr(torch, name))
        for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne")
    },
    **{f"tensor.{name}": _binary(getattr(torch, name)) for name in ("logical_and", "logical_or")},
    "tensor.where": lambda a, c, x, y: torch.where(c, x, y),
    "tensor.cast": lambda a, x: x != 0 if a["dtype"].value == "bool" else x,
    "tensor.sum": lambda a, x: x.sum(a["dims"], keepdim=a["keepdim"]),
    "tensor.mean": lambda a, x: x.mean(a["dims"], keepdim=a["keepdim"]),
    "tensor.max": lambda a, x: x.max(a["dims"][0], keepdim=a["keepdim"]).values,
    "tensor.min": lambda a, x: x.min(a["dims"][0], keepdim=a["keepdim"]).values,
    "tensor.argmax": lambda a, x: x.max(a["dim"], keepdim=a["keepdim"]).indices,
    "tensor.softmax": lambda a, x: torch.exp(x - torch.logsumexp(x, a["dim"], keepdim=True)),
    "tensor.view": lambda a, x: x.contiguous().view(a["shape"]),
    "tensor.permute": lambda a, x: torch.einsum(f"{'abcd'[: x.dim()]}->{''.join('abcd'[p] for p in a['perm'])}", x),
    "tensor.expand": lambda a, x: torch.broadcast_to(x, a["shape"]),
    "tensor.slice": _slice,
    "tensor.cat": lambda a, *xs: torch.concatenate(xs, a["dim"]),
    "tensor.arange": lambda a: torch.tensor(list(range(a["start"], a["stop"], a["step"]))),
    "tensor.full": lambda a: torch.tensor([a["value"]], dtype=torch.float64).repeat(a["shape"]),
    "tensor.linear": lambda a, x, w, *b: torch.einsum("...k,nk->...n", x, w) + (b[0] if b else 0),
    "tensor.matmul": lambda a, x, y: torch.einsum("...mk,...kn->...mn", x, y),
    "tensor.embedding": lambda a, w, ids: torch.stack([w[int(i)] for i in ids]),
    "tensor.gather_rows": lambda a, x, rows: torch.stack([x[int(i)] for i in rows]),
    "nn.rms_norm": _rms_norm,
    "nn.layer_norm": _layer_norm,
    "nn.rotary": _rotary,
    "nn.gated_act": lambda a, gate, up: _GATES[a["kind"]](gate) * up,
    "nn.softcap": lambda a, x: a["cap"] * torch.tanh(x / a["cap"]),
    "attn.attention": _attention,
}

Traced = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def _of_one(name: str, shift: float | None = None) -> Traced:
    """A function of x, or of numbers of at least `shift`."""
    function = getattr(torch, name)

    def call(m: Any, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = function(x if shift is None else x.abs() + shift)
        return out

    return call


def _comparison(name: str) -> Traced:
    function = getattr(torch, name)

    def call(m: Any, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        truth: torch.Tensor = function(x, m.b)
        return truth.float() * x

    return call


TRACED: dict[str, Traced] = {
    **{
        f"tensor.{n}": _of_one(n)
        for n in ("neg", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "abs", "floor", "relu", "erf")
    },
    **{f"tensor.{n}": _of_one(n, 0.5) for n in ("log", "sqrt", "rsqrt", "reciprocal")},
    **{f"tensor.{n}": _comparison(n) for n in ("lt", "le", "gt", "ge", "eq", "ne")},
    "tensor.silu": lambda m, x, p: F.silu(x),
    "tensor.softplus": lambda m, x, p: F.softplus(x),
    "tensor.gelu": lambda m, x, p: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "tensor.add": lambda m, x, p: x + m.b,
    "tensor.sub": lambda m, x, p: x - m.b,
    "tensor.mul": lambda m, x, p: x * m.b,
    "tensor.div": lambda m, x, p: x / (m.b.abs() + 1),
    "tensor.pow": lambda m, x, p: (x.abs() + 1) ** m.b,
    "tensor.maximum": lambda m, x, p: torch.maximum(x, m.b),
    "tensor.minimum": lambda m, x, p: torch.minimum(x, m.b),
    "tensor.logical_and": lambda m, x, p: torch.logical_and(x > 0, m.b > 0) * x,
    "tensor.logical_or": lambda m, x, p: torch.logical_or(x > 0, m.b > 0) * x,
    "tensor.logical_not": lambda m, x, p: torch.logical_not(x > 0) * x,
    "tensor.where": lambda m, x, p: torch.where(x > 0, x, m.b),
    "tensor.cast": lambda m, x, p: x.to(torch.bfloat16).to(x.dtype),
    "tensor.sum": lambda m, x, p: x + x.sum(-1, keepdim=True),
    "tensor.mean": lambda m, x, p: x + x.mean(-1, keepdim=True),
    "tensor.max": lambda m, x, p: x + x.amax(-1, keepdim=True),
    "tensor.min": lambda m, x, p: x + x.amin(-1, keepdim=True),
    "tensor.softmax": lambda m, x, p: x.softmax(-1),
    "tensor.view": lambda m, x, p: x.view(1, -1, 2, 4).flatten(2),
    "tensor.permute": lambda m, x, p: x.view(1, -1, 2, 4).transpose(2, 3).flatten(2),
    "tensor.expand": lambda m, x, p: x[..., None].expand(-1, -1, -1, 2).flatten(2),
    "tensor.slice": lambda m, x, p: x[..., 1:7:2],
    "tensor.cat": lambda m, x, p: torch.cat([x, -x], -1),
    "tensor.linear": lambda m, x, p: F.linear(x, m.w, m.b),
    "tensor.matmul": lambda m, x, p: (x.view(1, -1, 2, 4) @ x.view(1, -1, 4, 2)).flatten(2),
    "tensor.embedding": lambda m, x, p: x + F.embedding(p, m.table.weight),
    "nn.layer_norm": lambda m, x, p: F.layer_norm(x, (8,), m.w[0], m.b, 1e-5),
}
"""A function of (module with w [8, 8], b [8] and an embedding `table`, x [1, T, 8], positions [1, T]) whose trace has
the op."""
