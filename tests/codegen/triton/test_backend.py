"""What the backend accepts and refuses, and that kernels do not depend on the bucket."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from small_limits import limits

from inferir.codegen.backend import Context
from inferir.codegen.library import refusal
from inferir.codegen.triton.backend import BACKEND, lower_region
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import MB, NB, A, R, S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Value
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.sample import operand_types

H100 = Context(Bucket(1, 2), Target.named("sm_90"), limits())


def test_every_kind_of_region_is_supported(case: Any) -> None:
    assert refusal(BACKEND, case.region, H100) is None
    assert BACKEND.name == "triton"


def test_kernels_do_not_depend_on_bucket_or_device(case: Any) -> None:
    first = BACKEND.lower({"d": case.region}, H100)
    for bucket, target in ((Bucket(17, 65), "sm_90"), (Bucket(1, 2, decode=True), "sm_80")):
        assert BACKEND.lower({"d": case.region}, Context(bucket, Target.named(target), limits())) == first


def matmul(b: Any) -> Any:
    p = 2 if b.dtype is DType.BF16 else 1
    return b.region(b.op("tensor.linear_packed", b.arg(T, 64), b.arg(1, 64 // p, 64, p), n=64), anchor="matmul")


def attention(b: Any) -> Any:
    p = 2 if b.dtype is DType.BF16 else 1
    meta = (b.arg(S, MB, dtype=DType.I32), b.arg(A, 6, dtype=DType.I32))
    caches = (b.arg(NB, 2, 16 // p, 8, p), b.arg(NB, 2, 8 // p, 16, p))
    attrs = {"scale": 1.0, "kv_heads": 2, "block_size": 8, "layer": 0}
    return b.region(b.op("attn.paged", b.arg(T, 4, 16), *caches, *meta, **attrs), anchor="attention")


@pytest.mark.parametrize(("make", "reason"), [(matmul, "no matmul kernels"), (attention, "no attention kernels")])
def test_other_anchors_are_refused(make: Callable[[Any], Any], reason: str, body: Any) -> None:
    region = make(body)
    why = refusal(BACKEND, region, H100)
    assert why is not None
    assert reason in why
    with pytest.raises(CodegenError, match=rf"region test: .*{reason}"):
        lower_region("k", region)


def draw(b: Any) -> Value:
    types = operand_types(TensorType((R, 100), DType.F32)).values()
    operands = [b.arg(*t.shape, dtype=t.dtype) for t in types]
    value = b.op("sample.draw", b.arg(R, 100, dtype=DType.F32), *operands, valid=100)
    assert isinstance(value, Value)
    return value


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda b: b.op("tensor.softmax", b.arg(R, 128000), dim=-1), "131072 elements per row are more than the 32768"),
        (lambda b: b.op("tensor.linear", b.arg(T, 8), b.arg(4, 8)), "tensor.linear has no row-wise form"),
        (draw, "sample.draw has no row-wise form"),
        (lambda b: b.op("tensor.sum", b.arg(T, 8), dims=(0,), keepdim=True), "no result has a row axis"),
        (
            lambda b: b.op("tensor.sub", b.arg(T, 8), b.op("tensor.sum", b.arg(T, 8), dims=(0,), keepdim=True)),
            "over rows",
        ),
        (lambda b: b.op("tensor.cast", b.arg(T, 8), dtype=DType.F64), "f64 has no Triton form"),
        (lambda b: b.op("tensor.permute", b.arg(T, 3, 8), perm=(1, 0, 2)), "no result has a row axis"),
        (lambda b: b.op("tensor.view", b.arg(T, 8), shape=(2 * T, 4)), "moves the row axis"),
        (lambda b: b.op("tensor.slice", b.arg(T, 8), dim=0, start=1, stop=T), "has no row-wise form"),
        (lambda b: b.op("tensor.add", b.arg(T, 8), b.arg(T, 8, dtype=b.dtype)), ""),
        (lambda b: b.op("tensor.embedding", b.op("tensor.exp", b.arg(9, 8)), b.numbers()), "of a computed table"),
        (lambda b: b.op("tensor.embedding", b.arg(9, 8), b.arg(T, 4, dtype=DType.I32)), "one number per row"),
    ],
)
def test_bodies_without_a_form_are_refused_with_the_reason(
    make: Callable[[Any], Value], reason: str, body: Any
) -> None:
    why = refusal(BACKEND, body.region(make(body)), H100)
    if not reason:
        assert why is None  # a plain region in between: not everything is refused
        return
    assert why is not None
    assert why.startswith("region test: ")
    assert reason in why


def test_lowering_loads_neither_triton_nor_tvm() -> None:
    """Asking what is supported must stay cheap; only building loads the compiler."""
    program = (
        "import sys\n"
        "from inferir.codegen.backend import Context\n"
        "from inferir.codegen.backends import backend_for\n"
        "from inferir.codegen.library import refusal\n"
        "from inferir.ir.contract.bucket import Bucket\n"
        "from inferir.ir.contract.symbols import Limits\n"
        "from inferir.ir.graph.parser import parse_graph\n"
        "from inferir.ir.contract.target import Target\n"
        f"graph = parse_graph({TEXT!r})\n"
        "region = graph.outputs[0].node\n"
        "limits = Limits(max_model_len=64, max_tokens=8, max_seqs=8, max_rows=8, block_size=16)\n"
        "context = Context(Bucket(1, 2), Target.named('sm_90'), limits)\n"
        "assert refusal(backend_for(context.target), region, context) is None\n"
        "assert not {'triton', 'tvm', 'torch'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TEXT = """graph @main(%x: f32[T, 8]) -> (%1 as "y") {
  %1 = kernel.region(%x) {anchor="rowwise", body=graph @b(%x: f32[T, 8]) -> (%1 as "y") {
    %1 = nn.rms_norm(%x) {eps=1e-06, offset=0.0, round_before_weight=true} : f32[T, 8]
  }, name="norm"} : f32[T, 8]
}"""
