"""Row-wise kernels against the reference interpreter on their own bodies."""

from collections.abc import Callable

import pytest
import row_bodies as bodies
import torch
from row_bodies import CASES, Case

from inferir.codegen.tvm.kernels.rowwise import ELEMENTS_PER_CHUNK, rowwise_kernel
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import run_body
from inferir.ir.graph.types import TensorType

Run = Callable[..., list[torch.Tensor]]


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    if want.dtype == torch.bfloat16:
        torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-8)
    else:
        torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=lambda d: d.value)
@pytest.mark.parametrize("name", CASES)
def test_kernel_matches_the_reference(name: str, dtype: DType, run: Run, host: Target) -> None:
    torch.manual_seed(0)
    case = CASES[name](dtype)
    for got, want in zip(run(case, host), run_body(case.body, case.tensors), strict=True):
        _close(got, want)


@pytest.mark.parametrize("name", ["add_norm", "rotary_kv_partial"])
def test_every_target_computes_the_same(name: str, run: Run, target: Target) -> None:
    torch.manual_seed(1)
    case = CASES[name](DType.BF16)
    for got, want in zip(run(case, target), run_body(case.body, case.tensors), strict=True):
        _close(got, want)


def test_rows_do_not_depend_on_their_number_or_on_threads(run: Run, host: Target) -> None:
    torch.manual_seed(2)
    many = bodies.norm(DType.F32, width=333, rows=200)
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
        (_body("tensor.sum", TensorType((T, 4, 8), DType.F32), dims=(1,), keepdim=False), "tensor.sum over axes"),
        (_body("tensor.exp", TensorType((T, 8), DType.F64)), "f64"),
        (_body("tensor.exp", TensorType((S, 8), DType.F32)), "no run-time count"),
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


def test_a_small_bucket_is_cut_into_enough_chunks_to_share() -> None:
    body = bodies.norm(DType.BF16, width=576).body
    assert rowwise_kernel("norm", body, 16).chunks == "(n_t + 1) // 2"
    assert rowwise_kernel("norm", body, 1).chunks == "n_t"
    assert rowwise_kernel("norm", body, 2048).chunks == f"(n_t + 27) // {ELEMENTS_PER_CHUNK // 576}"


def test_only_cache_writes_ask_for_lines_ahead() -> None:
    case = bodies.rotary_kv(DType.BF16, heads=3, kv_heads=1, dim=64, turned=64)
    assert "inf_prefetch" in rowwise_kernel("rotary_kv_write", case.body).lib
    assert "inf_prefetch" not in rowwise_kernel("norm", bodies.norm(DType.BF16).body).lib
