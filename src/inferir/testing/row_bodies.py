"""Bodies of row-wise regions of every kind, for every backend."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inferir.ir.graph.dims import Dim, R, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.kv import cache_type

TABLE = 40


class Body(Builder):
    """Builds a body; operands are inputs in the order of their creation."""

    def __init__(self, dtype: DType) -> None:
        super().__init__()
        self.dtype = dtype
        self.inputs: list[Value] = []
        self.given: dict[Value, torch.Tensor] = {}

    def arg(self, *shape: Dim, dtype: DType | None = None, data: torch.Tensor | None = None) -> Value:
        """A new operand, with random content or `data`."""
        self.inputs.append(self.input(f"x{len(self.inputs)}", TensorType(shape, dtype or self.dtype)))
        if data is not None:
            self.given[self.inputs[-1]] = data
        return self.inputs[-1]

    def region(self, *outputs: Value, anchor: str = "rowwise") -> Node:
        body = Graph(tuple(self.inputs), outputs)
        return self.node("kernel.region", self.inputs, {"anchor": anchor, "body": body, "name": "test"})

    def numbers(self) -> Value:
        """Row numbers below `TABLE`."""
        return self.arg(T, dtype=DType.I32)

    def angles(self, size: int) -> tuple[Value, Value]:
        """Cosines and sines of this step's positions, read from tables."""
        at = self.numbers()
        cos, sin = (self.op("tensor.embedding", self.arg(TABLE, size), at) for _ in range(2))
        return cos, sin


Make = Callable[[Body], Sequence[Value]]


def add_norm(b: Body) -> Sequence[Value]:
    total = b.op("tensor.add", b.arg(T, 576), b.arg(T, 576))
    return total, b.op("nn.rms_norm", total, b.arg(576), eps=1e-5)


def gate_up(kind: str, size: int) -> Make:
    def make(b: Body) -> Sequence[Value]:
        both = b.arg(T, 2 * size)
        gate, up = (b.op("tensor.slice", both, dim=1, start=s, stop=s + size) for s in (0, size))
        return (b.op("nn.gated_act", gate, up, kind=kind),)

    return make


def head_norm_rotary(b: Body) -> Sequence[Value]:
    q = b.op("nn.rms_norm", b.op("tensor.view", b.arg(T, 9 * 64), shape=(T, 9, 64)), b.arg(64), eps=1e-6)
    return (b.op("tensor.view", b.op("nn.rotary", q, *b.angles(64)), shape=(T, 9 * 64)),)


def qkv(b: Body) -> Sequence[Value]:
    """Split a merged projection, rotate queries and keys, write keys and values to the cache."""
    merged, slots = b.arg(T, 8 * 16), b.arg(T, dtype=DType.I32)
    heads = b.op("tensor.view", merged, shape=(T, 8, 16))
    q, k, v = (b.op("tensor.slice", heads, dim=1, start=s, stop=e) for s, e in ((0, 4), (4, 6), (6, 8)))
    cos, sin = b.angles(16)
    caches = [b.arg(*cache_type(role, 2, 16, 8, b.dtype).shape) for role in ("k", "v")]
    writes = [("k", b.op("nn.rotary", k, cos, sin)), ("v", v)]
    stored = [
        b.op("kv.write", cache, x, slots, role=role, block_size=8)
        for cache, (role, x) in zip(caches, writes, strict=True)
    ]
    return (b.op("nn.rotary", q, cos, sin), *stored)


def rotary_kv(heads: int, kv_heads: int, dim: int, turned: int) -> Make:
    """QK-norm, rotary embedding of the first `turned` channels, and both cache writes, from one merged product."""

    def make(b: Body) -> Sequence[Value]:
        merged, slots, w = b.arg(T, (heads + 2 * kv_heads) * dim), b.arg(T, dtype=DType.I32), b.arg(dim)
        cos, sin = b.angles(turned)

        def part(start: int, count: int) -> Value:
            cut = b.op("tensor.slice", merged, dim=1, start=start * dim, stop=(start + count) * dim)
            return b.op("tensor.view", cut, shape=(T, count, dim))

        def turn(x: Value) -> Value:
            return b.op("nn.rotary", b.op("nn.rms_norm", x, w, eps=1e-6), cos, sin)

        caches = [b.arg(*cache_type(role, kv_heads, dim, 16, b.dtype).shape) for role in ("k", "v")]
        parts = (turn(part(heads, kv_heads)), part(heads + kv_heads, kv_heads))
        stored = [
            b.op("kv.write", cache, x, slots, role=role, block_size=16)
            for cache, x, role in zip(caches, parts, ("k", "v"), strict=True)
        ]
        return (turn(part(0, heads)), *stored)

    return make


def interleaved_rotary_keys(b: Body) -> Sequence[Value]:
    """Neighbouring channels of the first half of each head are turned, with the operations of the model, and written
    as keys: no vector of channels is made of neighbours.
    """
    x, slots = b.arg(T, 2 * 64), b.arg(T, dtype=DType.I32)
    heads = b.op("tensor.view", x, shape=(T, 2, 64))
    turned, rest = (b.op("tensor.slice", heads, dim=2, start=s, stop=s + 32) for s in (0, 32))
    even, odd = (b.op("tensor.slice", turned, dim=2, start=s, stop=32, step=2) for s in (0, 1))
    cos, sin = (b.op("tensor.view", a, shape=(T, 1, 16)) for a in b.angles(16))
    pairs = [
        b.op("tensor.sub", b.op("tensor.mul", even, cos), b.op("tensor.mul", odd, sin)),
        b.op("tensor.add", b.op("tensor.mul", odd, cos), b.op("tensor.mul", even, sin)),
    ]
    stacked = b.op("tensor.cat", *(b.op("tensor.view", p, shape=(T, 2, 16, 1)) for p in pairs), dim=3)
    keys = b.op("tensor.cat", b.op("tensor.view", stacked, shape=(T, 2, 32)), rest, dim=2)
    cache = b.arg(*cache_type("k", 2, 64, 16, b.dtype).shape)
    return (b.op("kv.write", cache, keys, slots, role="k", block_size=16),)


def every_scalar_op(b: Body) -> Sequence[Value]:
    x, y = b.arg(T, 40), b.arg(T, 40)
    p = b.op("tensor.add", b.op("tensor.abs", x), b.scalar(0.25))
    out = [b.op(f"tensor.{n}", p) for n in ("log", "sqrt", "rsqrt", "reciprocal", "softplus")]
    out += [b.op(f"tensor.{n}", x) for n in ("neg", "exp", "sin", "cos", "tanh", "sigmoid", "silu", "relu", "erf")]
    out += [b.op(f"tensor.{n}", x) for n in ("expm1", "floor")]
    out += [b.op("tensor.gelu", x, approximate=a) for a in ("none", "tanh")]
    out += [b.op(f"tensor.{n}", x, y) for n in ("add", "sub", "mul", "maximum", "minimum")]
    out += [
        b.op("tensor.div", x, p),
        b.op("tensor.pow", p, y),
        b.op("tensor.pow", b.scalar(10000.0), b.op("tensor.tanh", x)),
    ]
    out += [b.op("tensor.pow", p, b.scalar(e)) for e in (2.0, 3.0, 0.5, -0.75)]
    return tuple(out)


def logic_and_casts(b: Body) -> Sequence[Value]:
    x, y, n = b.arg(T, 40), b.arg(T, 40), b.arg(T, 40, dtype=DType.I32)
    tests = [b.op(f"tensor.{c}", x, y) for c in ("lt", "le", "gt", "ge", "eq", "ne")]
    tests += [b.op("tensor.gt", x, b.scalar(0.1)), b.op("tensor.eq", n, b.scalar(3))]
    both = b.op("tensor.logical_and", tests[0], b.op("tensor.logical_or", tests[6], tests[7]))
    picked = b.op("tensor.where", b.op("tensor.logical_not", both), x, b.scalar(float("-inf")))
    integer = b.op("tensor.cast", b.op("tensor.mul", x, b.scalar(10.0)), dtype=DType.I32)
    sums = b.op("tensor.sub", b.op("tensor.mul", n, integer), b.scalar(7))
    casts = [
        b.op("tensor.cast", v, dtype=d) for v, d in ((n, b.dtype), (both, b.dtype), (both, DType.I64), (x, DType.BOOL))
    ]
    return (*tests, both, picked, integer, sums, b.op("tensor.abs", b.op("tensor.neg", sums)), *casts)


def reductions(b: Body) -> Sequence[Value]:
    x = b.arg(T, 5, 12)
    over: dict[str, Any] = {"dims": (-1,), "keepdim": True}
    centred = b.op("tensor.sub", x, b.op("tensor.mean", x, **over))
    return (
        b.op("tensor.div", centred, b.op("tensor.max", b.op("tensor.abs", centred), **over)),
        b.op("tensor.sum", x, dims=(1, 2), keepdim=False),
        b.op("tensor.min", x, dims=(-1,), keepdim=False),
        b.op("tensor.sum", x, dims=(1,), keepdim=True),
        b.op("tensor.argmax", x, dim=-1, keepdim=False),
        b.op("tensor.sum", b.op("tensor.full", shape=(T, 3), value=2.0, dtype=b.dtype), dims=(1,), keepdim=False),
    )


def integer_reductions(b: Body) -> Sequence[Value]:
    n = b.arg(T, 12, dtype=DType.I32)
    return b.op("tensor.sum", n, dims=(1,), keepdim=False), b.op("tensor.max", n, dims=(1,), keepdim=True)


def outer_join(b: Body) -> Sequence[Value]:
    """A concatenation of heads."""
    x = b.arg(T, 4, 15)
    middle = b.op("tensor.slice", x, dim=1, start=1, stop=3)
    return (b.op("tensor.cat", middle, b.op("tensor.exp", x), middle, dim=1),)


def shapes(b: Body) -> Sequence[Value]:
    x, w = b.arg(T, 6, 10), b.arg(10)
    odd = b.op("tensor.view", x, shape=(T, 4, 15))
    turned = b.op("tensor.view", b.op("tensor.permute", x, perm=(0, 2, 1)), shape=(T, 60))
    strided = b.op("tensor.slice", x, dim=-1, start=1, stop=10, step=3)
    wide = b.op("tensor.expand", b.op("tensor.view", w, shape=(1, 10)), shape=(T, 10))
    return (
        odd,
        turned,
        b.op("tensor.mul", strided, b.op("tensor.slice", w, dim=0, start=0, stop=3)),
        b.op("tensor.mul", b.arg(T, 10), wide),
        b.op("tensor.full", shape=(T, 7), value=-1.5, dtype=b.dtype),
    )


def ranges(b: Body) -> Sequence[Value]:
    count = b.op("tensor.view", b.op("tensor.arange", stop=T, dtype=b.dtype), shape=(T, 1))
    ramp = b.op("tensor.arange", start=3, stop=23, step=2, dtype=b.dtype)
    return b.op("tensor.add", b.arg(T, 10), count), b.op("tensor.mul", b.arg(T, 10), ramp)


def gathers(b: Body) -> Sequence[Value]:
    at = b.numbers()
    x = b.op("tensor.embedding", b.arg(TABLE, 96), at)
    shifted = b.op("tensor.gather_rows", b.arg(TABLE, 2, 8), b.op("tensor.sub", at, b.scalar(0)))
    return b.op("tensor.mul", x, b.scalar(9.797958971132712)), shifted


def logits(b: Body) -> Sequence[Value]:
    x = b.op("nn.softcap", b.op("tensor.cast", b.arg(R, 500), dtype=DType.F32), cap=30.0)
    return b.op("tensor.softmax", x, dim=-1), b.op("tensor.argmax", x, dim=-1, keepdim=False)


BODIES: dict[str, Make] = {
    "rms_norm": lambda b: (b.op("nn.rms_norm", b.arg(T, 576), b.arg(576), eps=1e-5),),
    "rms_norm_gemma": lambda b: (
        b.op("nn.rms_norm", b.arg(T, 1024), b.arg(1024), eps=1e-6, offset=1.0, round_before_weight=False),
    ),
    "rms_norm_bare": lambda b: (b.op("nn.rms_norm", b.arg(T, 48), eps=1e-6),),
    "layer_norm": lambda b: (b.op("nn.layer_norm", b.arg(T, 200), b.arg(200), b.arg(200), eps=1e-5),),
    "add_norm": add_norm,
    "gate_up_silu": gate_up("silu", 1536),
    "gate_up_gelu": gate_up("gelu_tanh", 300),
    "rotary": lambda b: (b.op("nn.rotary", b.arg(T, 9, 64), *b.angles(64)),),
    "rotary_partial": lambda b: (b.op("nn.rotary", b.arg(T, 3, 80), *b.angles(20)),),
    "head_norm_rotary": head_norm_rotary,
    "qkv_rotary_write": qkv,
    "every_scalar_op": every_scalar_op,
    "logic_and_casts": logic_and_casts,
    "reductions": reductions,
    "integer_reductions": integer_reductions,
    "outer_join": outer_join,
    "rotary_kv_wide": rotary_kv(4, 1, 256, 256),
    "rotary_kv_partial": rotary_kv(2, 2, 20, 8),
    "interleaved_rotary_keys": interleaved_rotary_keys,
    "softmax_of_groups": lambda b: (
        b.op("tensor.softmax", b.op("tensor.view", b.arg(T, 72), shape=(T, 6, 12)), dim=-1),
    ),
    "rms_norm_narrow": lambda b: (b.op("nn.rms_norm", b.arg(T, 7), b.arg(7), eps=1e-6),),
    "rms_norm_odd": lambda b: (b.op("nn.rms_norm", b.arg(T, 100), b.arg(100), eps=1e-6),),
    "shapes": shapes,
    "ranges": ranges,
    "gathers": gathers,
    "logits": logits,
    "per_row_scalars": lambda b: (b.op("tensor.add", b.arg(T), b.op("tensor.exp", b.arg(T))),),
}


def random_body(seed: int) -> Make:
    """Elementwise ops, reductions, halves and joins over rows of one width, picked at random."""

    def make(b: Body) -> Sequence[Value]:
        rng = random.Random(seed)
        size = rng.choice([6, 16, 34])
        pool = [b.arg(T, size), b.arg(T, size), b.arg(size)]
        for _ in range(rng.randint(4, 12)):
            x, y = rng.choice(pool), rng.choice(pool)
            kind = rng.choice(["unary", "binary", "binary", "scalar", "row", "turn", "select"])
            if kind == "unary":
                z = b.op(f"tensor.{rng.choice(['tanh', 'sigmoid', 'neg', 'abs'])}", x)
            elif kind == "binary":
                z = b.op(f"tensor.{rng.choice(['add', 'sub', 'maximum'])}", x, y)
            elif kind == "scalar":
                z = b.op("tensor.mul", x, b.scalar(round(rng.uniform(-1, 1), 3)))
            elif kind == "row":
                over = rng.choice(["mean", "max", "min"])
                z = b.op("tensor.sub", y, b.op(f"tensor.{over}", x, dims=(-1,), keepdim=True))
            elif kind == "turn":
                cut = rng.randint(1, size - 1)
                ends = [b.op("tensor.slice", x, dim=-1, start=s, stop=e) for s, e in ((cut, size), (0, cut))]
                z = b.op("tensor.cat", *ends, dim=-1)
            else:
                z = b.op("tensor.where", b.op("tensor.lt", x, b.scalar(0.0)), x, y)
            pool.append(z)
        rows = [v for v in pool[3:] if v.type.rank == 2]
        return tuple(dict.fromkeys([*rows[-2:], b.op("tensor.add", pool[0], pool[-1])]))

    return make


BODIES.update({f"random_{seed}": random_body(seed) for seed in range(8)})
