"""Lowerings of anchors: one module each, and those of other distributions."""

from __future__ import annotations

import pytest
from plugin_distributions import Plugged
from small_limits import limits

from inferir.codegen.backend import Context
from inferir.codegen.triton import backend as triton
from inferir.codegen.tvm import regions as tvm
from inferir.codegen.tvm.regions import lower_region
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph import registry
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.registry import DIALECTS
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify
from inferir.passes.fuse.fuse_regions import FuseRegions

CODE = """
from inferir.codegen.tvm.kernels import rowwise_region
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.registry import Dialect, OpDef
from inferir.ir.ops.common import same

SCAN = OpDef("acme.scan", 1, same, lambda attrs, x: x.cumsum(0), anchor="scan", mixes_rows=True, in_memory=1)
DIALECT = Dialect("acme", (SCAN,))

def lower(body, context):
    (x,), b = body.inputs, Builder()
    return rowwise_region.lower(Graph((x,), (b.op("tensor.neg", x),)), context)  # stands for a kernel of its own

BROKEN = 7
"""
CONTEXT = Context(Bucket(1, 2), Target.named("x86-64-v3"), limits())


def scan_region() -> Node:
    b = Builder()
    x = b.input("x", TensorType((T, 8), DType.F32))
    graph = FuseRegions().run(Graph((x,), (b.op("tensor.exp", b.op("acme.scan", x)),)))
    verify(graph)
    return next(n for n in graph.nodes if n.op == "kernel.region" and n.attrs["anchor"] == "scan")


def test_a_region_kind_from_outside_is_fused_and_lowered(plugged: Plugged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_OPS", dict(registry.all_ops()))
    plugged(
        [DIALECTS, tvm.LOWERINGS, triton.LOWERINGS],
        "acme",
        CODE,
        ops={"acme": "DIALECT"},
        tvm_regions={"scan": "lower", "broken": "BROKEN"},
    )
    region = scan_region()
    assert region.attrs["name"] == "scan"
    (kernel,) = lower_region("k0_scan", region, CONTEXT).kernels
    assert kernel.name == "k0_scan"
    with pytest.raises(CodegenError, match="the Triton backend has no scan kernels, only rowwise"):
        triton.ANCHORS.lower("scan")
    with pytest.raises(CodegenError, match=r"the lowering of the anchor 'broken' of acme 1\.5|lowering of the anchor"):
        tvm.ANCHORS.lower("broken")


def test_an_anchor_that_nobody_lowers_is_named() -> None:
    with pytest.raises(CodegenError, match="has no scan kernels, only argmax, attention, matmul, rowwise"):
        tvm.ANCHORS.lower("scan")
