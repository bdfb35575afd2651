"""Few rows make a product memory-bound: each of its tasks then reads blocks of the weight that no other task reads.

Tasks are run one at a time, on a weight whose blocks can be told apart by the results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernel_arguments import in_order
from matmul_regions import Linear
from small_limits import limits

from inferir.codegen.backend import Context
from inferir.codegen.tunables import Product
from inferir.codegen.tvm.regions import lower_region
from inferir.codegen.tvm.tiles import TileTuning
from inferir.ir.contract.bucket import default_buckets
from inferir.ir.contract.target import TARGETS, Target
from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node

MEMORY_BOUND = default_buckets(16)
LIMITS = limits(max_rows=16)


def gated(dtype: DType) -> tuple[Linear, Node]:
    """24 blocks of two interleaved halves."""
    m = Linear(dtype, 576, 2 * 768, interleave=2)
    halves = (m.b.op("tensor.slice", m.y, dim=1, start=s, stop=s + 768) for s in (0, 768))
    return m, m.region(m.b.op("tensor.maximum", *halves))


def logits(dtype: DType) -> tuple[Linear, Node]:
    """71 small blocks, the last of which is not full: tasks of two, and one of one."""
    m = Linear(dtype, 64, 70 * 64 + 20, row=R)
    return m, m.region(m.b.op("tensor.cast", m.y, dtype=DType.F32))


def operands(m: Linear, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row r of the product is 2^r (b + 1) in all columns of block b, without rounding."""
    packed = torch.zeros(m.w.type.concrete({}))
    packed[:, 0, :, 0] = torch.arange(1, len(packed) + 1)[:, None]
    x = torch.ones(rows, m.k) * 2.0 ** torch.arange(rows)[:, None]
    return x, packed


def memory(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    return tensor.bfloat16().view(torch.int16).numpy() if dtype is DType.BF16 else tensor.numpy()


def values(array: np.ndarray) -> np.ndarray:
    return torch.from_numpy(array).view(torch.bfloat16).float().numpy() if array.dtype == np.int16 else array


@pytest.mark.parametrize("kind", [gated, logits])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32], ids=lambda d: d.value)
def test_each_block_of_a_weight_belongs_to_one_task(
    runner: Callable, aligned: Callable, host: Target, dtype: DType, kind: Callable
) -> None:
    m, region = kind(dtype)
    lowered = [lower_region(b.name.replace("-", "_"), region, Context(b, host, LIMITS)) for b in MEMORY_BOUND]
    step = runner([one.kernels[0] for one in lowered], host, 1)
    result = region.attrs["body"].outputs[0].type
    for number, (bucket, one) in enumerate(zip(MEMORY_BOUND, lowered, strict=True)):
        for rows in {bucket.lo, bucket.most}:
            x, packed = operands(m, rows)
            out = aligned(np.zeros((rows, result.shape[1]), np.int16 if result.dtype is DType.BF16 else np.float32))
            arrays = in_order(one.args, [aligned(memory(t, dtype)) for t in (x, packed)], [out])
            table = step.table([(number, arrays)])
            block = np.arange(out.shape[1]) // (64 // m.interleave)
            want = 2.0 ** np.arange(rows)[:, None] * (block + 1)
            read = np.zeros(len(packed), int)
            tasks, stream = step.shared_tasks(table, n_t=rows, n_r=rows), one.kernels[0].stream
            assert stream is not None
            assert stream.param == 1
            assert (tasks - 1) * stream.task_bytes < arrays[1].nbytes <= tasks * stream.task_bytes
            for task in range(tasks):
                out.view(np.uint8)[...] = 0xFF  # NaN
                step.run_task(table, task)
                got = values(out)
                mine = np.unique(block[~np.isnan(got).all(axis=0)])
                read[mine] += 1
                # All rows of its blocks, so that no task has to read them again, and nothing else.
                np.testing.assert_array_equal(
                    got, np.where(np.isin(block, mine), want, np.nan), f"{bucket.name}, {rows} rows, task {task}"
                )
            np.testing.assert_array_equal(read, 1, f"tasks that read each block, {bucket.name}, {rows} rows")


def test_panels_of_many_rows_share_blocks_in_turn(runner: Callable, aligned: Callable, host: Target) -> None:
    """What is read ahead of a product of several panels: consecutive tasks begin with the same block."""
    rows, m = 64, Linear(DType.BF16, 64, 9 * 64)
    many = default_buckets(rows)[-1]
    assert many not in MEMORY_BOUND
    region = m.region(m.b.op("tensor.cast", m.y, dtype=DType.F32))
    (kernel,) = (one := lower_region("many", region, Context(many, host, limits(max_rows=rows)))).kernels
    step = runner([kernel], host, 1)
    x, packed = operands(m, rows)
    out = aligned(np.zeros((rows, 9 * 64), np.float32))
    arrays = in_order(one.args, [aligned(memory(t, DType.BF16)) for t in (x, packed)], [out])
    table = step.table([(0, arrays)])
    tasks, stream = step.shared_tasks(table, n_t=rows), kernel.stream
    assert stream is not None
    readers = eval(stream.readers.replace("T.truncdiv", "divide"), {"divide": int.__floordiv__, "n_t": rows})
    assert readers > 1
    for task in range(tasks):
        out[...] = np.nan
        step.run_task(table, task)
        first = np.flatnonzero(~np.isnan(out).all(axis=0))[0] // 64
        assert first * packed[0].nbytes // 2 == task // readers * stream.task_bytes


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.kind == "cpu"], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("k", "n"), [(576, 64), (576, 49152), (1536, 576), (4096, 28672), (14336, 4096)])
def test_no_tile_that_may_be_chosen_splits_few_rows(target: Target, dtype: str, k: int, n: int) -> None:
    for bucket in MEMORY_BOUND:
        for tile in TileTuning().candidates(Product(k, n, dtype, 1, bucket.lo, bucket.most), target):
            assert tile.panel >= bucket.most
