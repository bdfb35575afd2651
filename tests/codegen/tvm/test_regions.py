"""Whole regions against the reference interpreter: matmuls with their epilogues, for every bucket shape."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from kernel_arguments import in_order
from matmul_regions import KINDS, LIMITS, Linear, bias_and_residual

from inferir.codegen.backend import Context
from inferir.codegen.tvm.regions import lower_region
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.ir.graph.interpreter import run_body


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.fixture
def run(runner: Callable, aligned: Callable) -> Callable[..., list[torch.Tensor]]:
    """Lower a region for a bucket, run it on `rows` rows, and return its results."""

    def go(
        region: Node, tensors: Sequence[torch.Tensor], rows: int, bucket: Bucket, target: Target
    ) -> list[torch.Tensor]:
        lowered = lower_region("k", region, Context(bucket, target, LIMITS))
        body = region.attrs["body"]
        wants = run_body(body, tensors)
        results = [aligned(np.zeros_like(_array(w))) for w in wants]
        arrays = in_order(lowered.args, [aligned(_array(t)) for t in tensors], results)
        step = runner(lowered.kernels, target)
        step.step(step.table([(0, arrays)]), n_t=rows, n_r=rows)
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
    context = Context(Bucket(1, 2), Target.host(), LIMITS)
    m = Linear(DType.F32, 32, 64)
    shifted = m.b.op("tensor.slice", m.y, dim=1, start=8, stop=40)
    with pytest.raises(CodegenError, match=r"region linear .*: an epilogue of 64 columns cannot produce"):
        lower_region("k", m.region(shifted), context)
    two = m.b.op("tensor.add", m.y, m.b.op("tensor.linear_packed", m.x, m.w, n=64))
    with pytest.raises(CodegenError, match=r"2 tensor\.linear_packed ops in one region"):
        lower_region("k", m.region(two), context)
