"""The TVM backend behind the protocol that all code generators share."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
from matmul_regions import KINDS, LIMITS

from inferir.codegen.backend import BuildJob, Context
from inferir.codegen.library import lower_bucket, refusal
from inferir.codegen.tvm.backend import BACKEND
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import Operand, Result
from inferir.ir.contract.target import TARGETS, Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType

HOST = Context(Bucket(1, 2), Target.host(), LIMITS)


def _rowwise(dtype: DType) -> Node:
    b = Builder()
    x = b.input("x", TensorType((T, 8), dtype))
    body = Graph((x,), (b.op("tensor.exp", x),))
    operand = b.input("a", x.type)
    return b.node("kernel.region", (operand,), {"anchor": "rowwise", "body": body, "name": "exp"})


@pytest.mark.parametrize("kind", KINDS)
def test_matmul_regions_are_supported(kind: str) -> None:
    assert refusal(BACKEND, KINDS[kind](DType.BF16)[1], HOST) is None


def test_refusals_are_reasons() -> None:
    assert "f64" in (refusal(BACKEND, _rowwise(DType.F64), HOST) or "")
    with pytest.raises(CodegenError, match="region exp"):
        BACKEND.lower({"d": _rowwise(DType.F64)}, HOST)


def test_all_regions_without_a_kernel_are_told_at_once() -> None:
    regions = {"a": _rowwise(DType.F64), "b": _rowwise(DType.F32), "c": _rowwise(DType.F64)}
    with pytest.raises(CodegenError, match="the tvm backend has kernels for 1 of 3 distinct regions") as found:
        lower_bucket(BACKEND, regions, HOST)
    assert len(found.value.details) == 2
    assert all(d.startswith("region exp ") and "f64[T, 8] to f64[T, 8]" in d for d in found.value.details)


@pytest.mark.parametrize("name", [t.name for t in TARGETS.values() if t.kind == "cpu"])
def test_one_kernel_builds_for_every_cpu_target(name: str, tmp_path: Path) -> None:
    context = replace(HOST, target=Target.named(name))
    lowered = BACKEND.lower({"d": _rowwise(DType.F32)}, context)
    (kernel,) = lowered.meta.kernels
    assert (kernel.region, kernel.args) == ("d", (Operand(0), Result(0)))
    assert [p.dtype for p in kernel.params] == ["float32", "float32"]
    (library,) = BACKEND.build([BuildJob("t1", BACKEND.module(lowered.kernels), context.target)])
    path = tmp_path / "k.so"
    path.write_bytes(library)
    assert ctypes.CDLL(str(path)).inferir_dispatch
