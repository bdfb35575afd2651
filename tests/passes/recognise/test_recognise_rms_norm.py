"""recognise-rms-norm: every rounding variant, bit for bit."""

import pytest

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.types import TensorType
from inferir.passes.canonicalise.cse import ShareCommon
from inferir.passes.recognise.recognise_rms_norm import RecogniseRmsNorm

B = Builder()
F32, BF16 = DType.F32, DType.BF16


def test_golden_round_before_weight(golden) -> None:
    before = """graph @g(%x: bf16[T, 8]) -> (%10 as "y") {
      %1 = tensor.cast(%x) {dtype=f32} : f32[T, 8]
      %2 = tensor.mul(%1, %1) : f32[T, 8]
      %3 = tensor.mean(%2) {dims=(-1), keepdim=true} : f32[T, 1]
      %4 = core.scalar {value=1e-06} : f64[]
      %5 = tensor.add(%3, %4) : f32[T, 1]
      %6 = tensor.rsqrt(%5) : f32[T, 1]
      %7 = tensor.mul(%1, %6) : f32[T, 8]
      %8 = tensor.cast(%7) {dtype=bf16} : bf16[T, 8]
      %9 = core.weight {name="w"} : bf16[8]
      %10 = tensor.mul(%9, %8) : bf16[T, 8]
    }"""
    after = """graph @g(%x: bf16[T, 8]) -> (%2 as "y") {
      %1 = core.weight {name="w"} : bf16[8]
      %2 = nn.rms_norm(%x, %1) {eps=1e-06, offset=0.0, round_before_weight=true} : bf16[T, 8]
    }"""
    golden(RecogniseRmsNorm(), before, after)


def test_golden_shifted_weight_before_rounding(golden) -> None:
    before = """graph @g(%x: bf16[T, 2, 4]) -> (%12 as "y") {
      %1 = tensor.cast(%x) {dtype=f32} : f32[T, 2, 4]
      %2 = tensor.mul(%1, %1) : f32[T, 2, 4]
      %3 = tensor.mean(%2) {dims=(2), keepdim=true} : f32[T, 2, 1]
      %4 = core.scalar {value=1e-06} : f64[]
      %5 = tensor.add(%4, %3) : f32[T, 2, 1]
      %6 = tensor.rsqrt(%5) : f32[T, 2, 1]
      %7 = tensor.mul(%6, %1) : f32[T, 2, 4]
      %8 = core.weight {name="w"} : bf16[4]
      %9 = tensor.cast(%8) {dtype=f32} : f32[4]
      %10 = core.scalar {value=1.0} : f64[]
      %11 = tensor.add(%9, %10) : f32[4]
      %13 = tensor.mul(%7, %11) : f32[T, 2, 4]
      %12 = tensor.cast(%13) {dtype=bf16} : bf16[T, 2, 4]
    }"""
    after = """graph @g(%x: bf16[T, 2, 4]) -> (%2 as "y") {
      %1 = core.weight {name="w"} : bf16[4]
      %2 = nn.rms_norm(%x, %1) {eps=1e-06, offset=1.0, round_before_weight=false} : bf16[T, 2, 4]
    }"""
    golden(RecogniseRmsNorm(), before, after)


def normed(x: Value, dtype: DType, form: str, offset: float, before: bool) -> Value:
    """A norm as models write it."""
    f = x if dtype is F32 else B.op("tensor.cast", x, dtype=F32)
    mean = B.op("tensor.mean", B.op("tensor.mul", f, f), dims=(-1,), keepdim=True)
    variance = B.op("tensor.add", mean, B.scalar(1e-5))
    if form == "rsqrt":
        y = B.op("tensor.mul", f, B.op("tensor.rsqrt", variance))
    elif form == "reciprocal":
        y = B.op("tensor.mul", f, B.op("tensor.reciprocal", B.op("tensor.sqrt", variance)))
    else:
        y = B.op("tensor.div", f, B.op("tensor.sqrt", variance))
    w = B.weight("w", TensorType((6,), dtype))
    if dtype is F32:
        return B.op("tensor.mul", y, B.op("tensor.add", w, B.scalar(offset)) if offset else w)
    if before:
        return B.op(
            "tensor.mul", B.op("tensor.cast", y, dtype=dtype), B.op("tensor.add", w, B.scalar(offset)) if offset else w
        )
    w = B.op("tensor.cast", w, dtype=F32)
    y = B.op("tensor.mul", B.op("tensor.add", w, B.scalar(offset)) if offset else w, y)
    return B.op("tensor.cast", y, dtype=dtype)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("form", ["rsqrt", "reciprocal", "div"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("before", [False, True])
def test_variants(run, dtype: DType, form: str, offset: float, before: bool) -> None:
    x = B.input("x", TensorType((T, 6), dtype))
    graph = ShareCommon().run(Graph((x,), (normed(x, dtype, form, offset, before),), ("y",)))
    after = RecogniseRmsNorm().run(graph)
    assert [n.op for n in after.nodes if not n.op.startswith("core.")] == ["nn.rms_norm"]
    # 1/sqrt and rsqrt may differ in the last place
    tolerance = 0.0 if form == "rsqrt" else 1e-2 if dtype is BF16 else 1e-6
    assert (run(graph)["y"].float() - run(after)["y"].float()).abs().max() <= tolerance


def test_without_weight(golden) -> None:
    before = """graph @g(%x: f32[T, 8]) -> (%6 as "y") {
      %1 = tensor.mul(%x, %x) : f32[T, 8]
      %2 = tensor.mean(%1) {dims=(1), keepdim=true} : f32[T, 1]
      %3 = core.scalar {value=1e-05} : f64[]
      %4 = tensor.add(%2, %3) : f32[T, 1]
      %5 = tensor.rsqrt(%4) : f32[T, 1]
      %6 = tensor.mul(%x, %5) : f32[T, 8]
    }"""
    after = """graph @g(%x: f32[T, 8]) -> (%2 as "y") {
      %2 = nn.rms_norm(%x) {eps=1e-05, offset=0.0, round_before_weight=true} : f32[T, 8]
    }"""
    golden(RecogniseRmsNorm(), before, after)


@pytest.mark.parametrize("change", ["dims", "keepdim", "other", "half"])
def test_what_is_no_norm_stays(change: str) -> None:
    dtype = BF16 if change == "half" else F32
    x = B.input("x", TensorType((T, 6, 6), dtype))
    other = B.op("tensor.exp", x) if change == "other" else x
    mean = B.op(
        "tensor.mean",
        B.op("tensor.mul", x, other),
        dims=(-2,) if change == "dims" else (-1,),
        keepdim=change != "keepdim",
    )
    y = (
        B.op("tensor.mul", x, B.op("tensor.rsqrt", B.op("tensor.add", mean, B.scalar(1e-6))))
        if change != "keepdim"
        else mean
    )
    graph = Graph((x,), (y,))
    assert RecogniseRmsNorm().run(graph) is graph


def test_a_full_matrix_is_no_weight() -> None:
    x = B.input("x", TensorType((T, 6), F32))
    m = B.input("m", TensorType((T, 6), F32))
    graph = Graph((x, m), (B.op("tensor.mul", B.op("nn.rms_norm", x, eps=1e-6), m),))
    assert RecogniseRmsNorm().run(graph) is graph
