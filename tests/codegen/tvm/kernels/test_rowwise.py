"""Row-wise kernels on every target, and what has none; `check_backend` runs bodies of every kind on this machine."""

from collections.abc import Callable

import pytest
import torch

from inferir.codegen.tvm.kernels.rowwise_region import ELEMENTS_PER_TASK, rowwise_kernel
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import NB, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import run_body
from inferir.ir.graph.types import TensorType
from inferir.testing.row_cases import Case, case_of, check

Run = Callable[..., list[torch.Tensor]]


def _flushes(target: Target) -> bool:
    """The instruction of AVX512-BF16 takes subnormal numbers for zero."""
    return "avx512bf16" in target.features


NAMES = ["add_norm", "rotary_kv_partial", "interleaved_rotary_keys", "numbers_le", "numbers_add", "numbers_mul"]


@pytest.mark.parametrize("name", NAMES)
def test_every_target_computes_the_same(name: str, run: Run, target: Target) -> None:
    case = case_of(name, DType.BF16)
    for got, want in zip(run(case, target), run_body(case.body, case.tensors), strict=True):
        check(name, got, want, _flushes(target))


def test_rows_do_not_depend_on_their_number_or_on_threads(run: Run, host: Target) -> None:
    many = case_of("rms_norm_odd", DType.F32, rows=200)
    whole = run(many, host, workers=2)[0]
    alone = run(Case(many.body, [many.tensors[0][77:78].clone(), many.tensors[1]], 1), host)[0]
    assert torch.equal(whole[77:78], alone)


def _body(op: str, *types: TensorType, **attrs: object) -> Graph:
    b = Builder()
    inputs = tuple(b.input(f"x{i}", t) for i, t in enumerate(types))
    return Graph(inputs, (b.op(op, *inputs, **attrs),))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_body("tensor.sum", TensorType((T, 8), DType.I32), dims=(1,), keepdim=False), "tensor.sum of i32"),
        (_body("tensor.exp", TensorType((T, 8), DType.F64)), "f64"),
        (_body("tensor.exp", TensorType((NB, 8), DType.F32)), "no run-time count"),
        (
            _body("tensor.embedding", TensorType((1 << 20, 4096), DType.BF16), TensorType((T,), DType.I32)),
            "4294967296 elements is beyond 32-bit indices",
        ),
        (_body("tensor.permute", TensorType((T, 8, 4), DType.F32), perm=(1, 0, 2)), "row axis"),
    ],
)
def test_what_has_no_row_form_is_refused_by_name(body: Graph, message: str) -> None:
    with pytest.raises(CodegenError, match=message):
        rowwise_kernel("k", body)


def test_a_small_bucket_is_cut_into_enough_tasks_to_share() -> None:
    body = case_of("rms_norm", DType.BF16).body
    assert rowwise_kernel("norm", body, 16).tasks == "(n_t + 1) // 2"
    assert rowwise_kernel("norm", body, 1).tasks == "n_t"
    assert rowwise_kernel("norm", body, 2048).tasks == f"(n_t + 27) // {ELEMENTS_PER_TASK // 576}"


def test_only_cache_writes_ask_for_lines_ahead() -> None:
    case = case_of("rotary_kv_wide", DType.BF16)
    assert '"inf_prefetch"' in rowwise_kernel("rotary_kv_write", case.body).source
    assert '"inf_prefetch"' not in rowwise_kernel("norm", case_of("rms_norm", DType.BF16).body).source
