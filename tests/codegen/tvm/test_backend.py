"""The TVM backend behind the protocol that all code generators share."""

import ctypes
from pathlib import Path

import pytest
from matmul_regions import KINDS, LIMITS

from inferir.codegen.backend import Backend
from inferir.codegen.tvm.backend import TvmBackend
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import Operand, Result
from inferir.ir.contract.target import TARGETS, Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.types import TensorType

BACKEND: Backend = TvmBackend(LIMITS)
BUCKET = Bucket(1, 2)


def _rowwise(dtype: DType) -> Node:
    b = Builder()
    x = b.input("x", TensorType((T, 8), dtype))
    body = Graph((x,), (b.op("tensor.exp", x),))
    operand = b.input("a", x.type)
    return b.node("kernel.region", (operand,), {"anchor": "rowwise", "body": body, "name": "exp"})


@pytest.mark.parametrize("kind", KINDS)
def test_matmul_regions_are_supported(kind: str) -> None:
    assert BACKEND.supports(KINDS[kind](DType.BF16)[1], BUCKET, Target.host()) is None


def test_refusals_are_reasons() -> None:
    assert "f64" in (BACKEND.supports(_rowwise(DType.F64), BUCKET, Target.host()) or "")
    assert "not for sm_90" in (BACKEND.supports(_rowwise(DType.F32), BUCKET, Target.named("sm_90")) or "")
    with pytest.raises(CodegenError, match="region exp"):
        BACKEND.lower("k", _rowwise(DType.F64), BUCKET, Target.host())


@pytest.mark.parametrize("name", [t.name for t in TARGETS.values() if t.kind == "cpu"])
def test_one_kernel_builds_for_every_cpu_target(name: str, tmp_path: Path) -> None:
    target = Target.named(name)
    kernel = BACKEND.lower("k", _rowwise(DType.F32), BUCKET, target)
    assert kernel.args == (Operand(0), Result(0))
    assert [dtype for _, dtype in kernel.params] == ["float32", "float32"]
    path = tmp_path / "k.so"
    path.write_bytes(BACKEND.build(kernel, BUCKET, target))
    assert ctypes.CDLL(str(path)).inferir_dispatch
