"""Whole regions against the reference interpreter: matmuls with their epilogues, for every bucket shape."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from inferir.codegen.tvm.regions import Bounds, lower_region
from inferir.ir.bucket import Bucket
from inferir.ir.dims import Dim, R, T
from inferir.ir.dtypes import DType, torch_dtype
from inferir.ir.errors import CodegenError
from inferir.ir.graph import Builder, Graph, Node, Value
from inferir.ir.interpreter import run_body
from inferir.ir.ops.layout import pack_weight
from inferir.ir.target import Target
from inferir.ir.types import TensorType

BOUNDS = Bounds(max_rows=8, max_blocks=4)


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
        weight = pack_weight((torch.randn(self.n, self.k) / self.k**0.5).to(kind), 64, self.pack, self.interleave)
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


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.fixture
def run(runner: Callable, aligned: Callable) -> Callable[..., list[torch.Tensor]]:
    """Lower a region for a bucket, run it on `rows` rows, and return its results."""

    def go(
        region: Node, tensors: Sequence[torch.Tensor], rows: int, bucket: Bucket, target: Target
    ) -> list[torch.Tensor]:
        lowered = lower_region("k", region, bucket, target, BOUNDS)
        body = region.attrs["body"]
        wants = run_body(body, tensors)
        results = [aligned(np.zeros_like(_array(w))) for w in wants]
        arrays = [*(aligned(_array(t)) for t in tensors), *results]
        step = runner([lowered.kernel], target)
        step.step(step.table([(0, [arrays[i] for i in lowered.order])]), n_t=rows, n_r=rows)
        return [
            torch.from_numpy(a).view(w.dtype) if w.dtype == torch.bfloat16 else torch.from_numpy(a)
            for a, w in zip(results, wants, strict=True)
        ]

    return go


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=lambda d: d.value)
@pytest.mark.parametrize("kind", KINDS)
def test_epilogues_match_the_reference(kind: str, dtype: DType, run: Callable, host: Target) -> None:
    torch.manual_seed(0)
    m, region = KINDS[kind](dtype)
    for rows, bucket in ((1, Bucket(1, 2)), (7, Bucket(5, 9))):
        tensors = m.tensors(rows)
        for got, want in zip(
            run(region, tensors, rows, bucket, host), run_body(region.attrs["body"], tensors), strict=True
        ):
            tolerance = 2e-5 if want.dtype == torch.float32 and dtype is DType.F32 else 2**-6
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_row_is_the_same_in_every_bucket(run: Callable, target: Target) -> None:
    torch.manual_seed(1)
    m, region = bias_and_residual(DType.BF16)
    tensors = m.tensors(40)
    whole = run(region, tensors, 40, Bucket(17, 65), target)[0]
    for row in (0, 17, 39):
        alone = [tensors[0][row : row + 1], tensors[1], tensors[2][row : row + 1], tensors[3]]
        assert torch.equal(run(region, alone, 1, Bucket(1, 2), target)[0][0], whole[row])


def test_refusals_name_region_and_reason() -> None:
    m = Linear(DType.F32, 32, 64)
    shifted = m.b.op("tensor.slice", m.y, dim=1, start=8, stop=40)
    with pytest.raises(CodegenError, match=r"region linear .*: an epilogue of 64 columns cannot produce"):
        lower_region("k", m.region(shifted), Bucket(1, 2), Target.host(), BOUNDS)
    two = m.b.op("tensor.add", m.y, m.b.op("tensor.linear_packed", m.x, m.w, n=64))
    with pytest.raises(CodegenError, match=r"2 tensor\.linear_packed ops in one region"):
        lower_region("k", m.region(two), Bucket(1, 2), Target.host(), BOUNDS)
