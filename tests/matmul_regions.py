"""Matmul regions of every kind, and random operands for them."""

import torch
from small_limits import limits

from inferir.ir.graph.dims import Dim, R, T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph, Node, Value
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_blocks import to_blocks

LIMITS = limits()


class Linear:
    """Builds a matmul region: x [rows, K] times a packed weight, then whatever `finish` adds."""

    def __init__(self, dtype: DType, k: int, n: int, interleave: int = 1, row: Dim = T) -> None:
        self.b = Builder()
        self.dtype, self.k, self.n, self.interleave, self.row = dtype, k, n, interleave, row
        pack = 2 if dtype is DType.BF16 else 1
        packed = TensorType((-(-n // 64), k // pack, 64, pack), dtype)
        self.x, self.w = self.b.input("x", TensorType((row, k), dtype)), self.b.input("w", packed)
        self.inputs = [self.x, self.w]
        self.pack = pack
        self.y = self.b.op("tensor.linear_packed", self.x, self.w, n=n, interleave=interleave)

    def input(self, *shape: Dim) -> Value:
        self.inputs.append(self.b.input(f"in{len(self.inputs)}", TensorType(shape, self.dtype)))
        return self.inputs[-1]

    def region(self, *outputs: Value) -> Node:
        body = Graph(tuple(self.inputs), outputs)
        operands = [Builder().input(f"a{i}", v.type) for i, v in enumerate(body.inputs)]
        return Builder().node("kernel.region", operands, {"anchor": "matmul", "body": body, "name": "linear"})

    def tensors(self, rows: int) -> list[torch.Tensor]:
        kind = torch_dtype(self.dtype)
        weight = to_blocks((torch.randn(self.n, self.k) / self.k**0.5).to(kind), self.pack, self.interleave)
        sizes = {str(self.row): rows}
        rest = [torch.randn(v.type.concrete(sizes)).to(kind) for v in self.inputs[2:]]
        return [torch.randn(rows, self.k).to(kind), weight, *rest]


def plain(dtype: DType) -> tuple[Linear, Node]:
    m = Linear(dtype, 48, 100)
    return m, m.region(m.y)


def bias_and_residual(dtype: DType) -> tuple[Linear, Node]:
    m = Linear(dtype, 64, 72)
    h, bias = m.input(T, 72), m.input(72)
    return m, m.region(m.b.op("tensor.add", h, m.b.op("tensor.add", m.y, bias)))


def gated(dtype: DType) -> tuple[Linear, Node]:
    m = Linear(dtype, 32, 2 * 84, interleave=2)
    gate, up = (m.b.op("tensor.slice", m.y, dim=1, start=s, stop=s + 84) for s in (0, 84))
    return m, m.region(m.b.op("nn.gated_act", gate, up, kind="silu"))


def heads(dtype: DType) -> tuple[Linear, Node]:
    m = Linear(dtype, 32, 96)
    return m, m.region(m.b.op("tensor.view", m.y, shape=(T, 6, 16)))


def logits(dtype: DType) -> tuple[Linear, Node]:
    m = Linear(dtype, 64, 200, row=R)
    capped = m.b.op("nn.softcap", m.b.op("tensor.cast", m.y, dtype=DType.F32), cap=5.0)
    return m, m.region(capped)


KINDS = {f.__name__: f for f in (plain, bias_and_residual, gated, heads, logits)}
