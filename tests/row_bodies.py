"""Region bodies of every row-wise kind, and random operands for them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inferir.ir.contract.step_inputs import DRAW_INPUTS
from inferir.ir.graph.dims import R, T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.attn import kpack
from inferir.ir.ops.kv import cache_type
from inferir.ir.ops.sample import operand_types

BLOCK = 16
POSITIONS = 40


@dataclass(frozen=True)
class Case:
    """A body and the operands for `rows` rows."""

    body: Graph
    tensors: list[torch.Tensor]
    rows: int


def _norm(b: Builder, dtype: DType, width: int, offset: float) -> tuple[list[Value], list[Value]]:
    x, w = b.input("x", TensorType((T, width), dtype)), b.input("w", TensorType((width,), dtype))
    return [x, w], [b.op("nn.rms_norm", x, w, eps=1e-6, offset=offset, round_before_weight=not offset)]


def norm(dtype: DType, width: int = 100, offset: float = 0.0, rows: int = 37) -> Case:
    b = Builder()
    inputs, outputs = _norm(b, dtype, width, offset)
    kind = torch_dtype(dtype)
    return Case(
        Graph(tuple(inputs), tuple(outputs)), [torch.randn(rows, width).to(kind), torch.randn(width).to(kind)], rows
    )


def add_norm(dtype: DType, width: int = 576, rows: int = 5) -> Case:
    """Two outputs, one of which the reduction of the other reads."""
    b = Builder()
    row = TensorType((T, width), dtype)
    x, y, w = b.input("x", row), b.input("y", row), b.input("w", TensorType((width,), dtype))
    h = b.op("tensor.add", x, y)
    out = b.op("nn.rms_norm", h, w, eps=1e-6, offset=1.0, round_before_weight=False)
    kind = torch_dtype(dtype)
    return Case(
        Graph((x, y, w), (h, out)),
        [torch.randn(rows, width).to(kind) for _ in range(2)] + [torch.randn(width).to(kind)],
        rows,
    )


def rotary_kv(dtype: DType, heads: int, kv_heads: int, dim: int, turned: int, rows: int = 7) -> Case:
    """QK-norm, rotary embedding of the first `turned` channels, and both cache writes, from one merged product."""
    b = Builder()
    width = (heads + 2 * kv_heads) * dim
    qkv = b.input("qkv", TensorType((T, width), dtype))
    tables = [b.input(n, TensorType((POSITIONS, turned), dtype)) for n in ("cos", "sin")]
    positions, slots = (b.input(n, TensorType((T,), DType.I32)) for n in ("positions", "slots"))
    kc = b.input("kc", cache_type("k", kv_heads, dim, BLOCK, dtype))
    vc = b.input("vc", cache_type("v", kv_heads, dim, BLOCK, dtype))
    w = b.input("w", TensorType((dim,), dtype))
    cos, sin = (b.op("tensor.embedding", t, positions) for t in tables)

    def part(start: int, count: int) -> Value:
        cut = b.op("tensor.slice", qkv, dim=1, start=start * dim, stop=(start + count) * dim)
        return b.op("tensor.view", cut, shape=(T, count, dim))

    def turn(x: Value) -> Value:
        return b.op("nn.rotary", b.op("nn.rms_norm", x, w, eps=1e-6), cos, sin)

    k = b.op("kv.write", kc, turn(part(heads, kv_heads)), slots, role="k", block_size=BLOCK)
    v = b.op("kv.write", vc, part(heads + kv_heads, kv_heads), slots, role="v", block_size=BLOCK)
    kind, p = torch_dtype(dtype), kpack(dtype)
    tensors = [
        torch.randn(rows, width).to(kind),
        *(torch.randn(POSITIONS, turned).to(kind) for _ in range(2)),
        torch.randint(0, POSITIONS, (rows,), dtype=torch.int32),
        torch.randperm(4 * BLOCK)[:rows].int(),
        torch.randn(4, kv_heads, dim // p, BLOCK, p).to(kind),
        torch.randn(4, kv_heads, BLOCK // p, dim, p).to(kind),
        torch.randn(dim).to(kind),
    ]
    return Case(Graph((qkv, *tables, positions, slots, kc, vc, w), (turn(part(0, heads)), k, v)), tensors, rows)


def embedding(dtype: DType, rows: int = 3) -> Case:
    b = Builder()
    w, ids = b.input("w", TensorType((50, 40), dtype)), b.input("ids", TensorType((T,), DType.I32))
    out = b.op("tensor.mul", b.op("tensor.embedding", w, ids), b.scalar(6.25))
    return Case(
        Graph((w, ids), (out,)),
        [torch.randn(50, 40).to(torch_dtype(dtype)), torch.randint(0, 50, (rows,), dtype=torch.int32)],
        rows,
    )


def activations(dtype: DType, rows: int = 3) -> Case:
    """Slices of one row, gated both ways, and a softmax over groups of channels."""
    b = Builder()
    x = b.input("x", TensorType((T, 72), dtype))
    gate, up = (b.op("tensor.slice", x, dim=1, start=s, stop=s + 36) for s in (0, 36))
    outs = [b.op("nn.gated_act", gate, up, kind=k) for k in ("gelu_tanh", "silu", "gelu", "sigmoid", "relu")]
    outs.append(b.op("tensor.softmax", b.op("tensor.view", x, shape=(T, 6, 12)), dim=-1))
    return Case(Graph((x,), tuple(outs)), [torch.randn(rows, 72).to(torch_dtype(dtype))], rows)


def arithmetic(dtype: DType, rows: int = 4) -> Case:
    """Every other elementwise op and reduction, over an odd width."""
    b = Builder()
    x = b.input("x", TensorType((T, 21), dtype))
    y = b.op("tensor.add", b.op("tensor.abs", x), b.scalar(0.5))
    outs = [
        b.op(f"tensor.{n}", y)
        for n in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "neg", "tanh", "erf", "softplus", "sin", "cos")
    ]
    outs += [b.op(f"tensor.{n}", x, y) for n in ("sub", "div", "maximum", "minimum")]
    outs += [b.op("tensor.pow", y, b.scalar(e)) for e in (2, 3.0, 0.5, -0.5, 1.7)]
    outs += [b.op(f"tensor.{n}", x, dims=(-1,), keepdim=True) for n in ("sum", "mean", "max", "min")]
    chosen = b.op("tensor.where", b.op("tensor.gt", x, b.scalar(0.0)), x, y)
    outs += [chosen, b.op("tensor.mul", chosen, y), b.op("tensor.sub", y, chosen)]
    outs.append(b.op("tensor.argmax", b.op("tensor.cast", x, dtype=DType.F32), dim=1, keepdim=False))
    outs.append(b.op("tensor.expand", b.op("tensor.view", x, shape=(T, 3, 1, 7)), shape=(T, 3, 2, 7)))
    outs.append(b.op("tensor.permute", b.op("tensor.view", x, shape=(T, 3, 7, 1)), perm=(0, 2, 1, 3)))
    return Case(Graph((x,), tuple(outs)), [torch.randn(rows, 21).to(torch_dtype(dtype))], rows)


def draw_operands(rows: int, vocab: int) -> dict[str, torch.Tensor]:
    """Operands of `sample.draw` that draw greedily, without mask, filters and edits."""
    words = (vocab + 31) // 32
    sizes = {"R": rows, "E": 1, "words": words}
    return {
        i.name: torch.full([sizes[d] for d in i.dims], i.name == "top_p", dtype=torch_dtype(i.dtype))
        for i in DRAW_INPUTS
    }


def draw_case(logits: torch.Tensor, valid: int | None = None, **operands: torch.Tensor) -> Case:
    """A draw from `logits` with some operands given, the others neutral."""
    rows, vocab = logits.shape
    given = {"logits": logits, **(draw_operands(rows, vocab) | operands)}
    b = Builder()
    type_ = TensorType((R, vocab), DType.F32)
    inputs = [b.input(n, t) for n, t in {"logits": type_, **operand_types(type_)}.items()]
    return Case(Graph(tuple(inputs), (b.op("sample.draw", *inputs, valid=valid or vocab),)), list(given.values()), rows)


def draw(rows: int = 24, vocab: int = 1000, valid: int = 997) -> Case:
    logits = torch.randn(rows, vocab) * 3
    logits[:, valid:] = 1e4
    return draw_case(
        logits,
        valid,
        temperature=torch.rand(rows) * 2 * (torch.arange(rows) % 3 > 0),
        seed=torch.randint(-(2**31), 2**31 - 1, (rows,)).int(),
        counter=torch.randint(0, 1000, (rows,)).int(),
    )


CASES: dict[str, Callable[[DType], Case]] = {
    "norm": norm,
    "norm_offset": lambda dtype: norm(dtype, 64, 1.0),
    "norm_narrow": lambda dtype: norm(dtype, 7),
    "add_norm": add_norm,
    "rotary_kv": lambda dtype: rotary_kv(dtype, 9, 3, 64, 64),
    "rotary_kv_wide": lambda dtype: rotary_kv(dtype, 4, 1, 256, 256),
    "rotary_kv_partial": lambda dtype: rotary_kv(dtype, 2, 2, 20, 8),
    "embedding": embedding,
    "activations": activations,
    "arithmetic": arithmetic,
}
