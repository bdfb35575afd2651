"""Regions that choose the most likely token."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.argmax import argmax_kernels
from inferir.codegen.tvm.kernels.argmax_parts import argmax_shape, parameters
from inferir.codegen.tvm.regions import LoweredRegion, RegionContext, single
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result, Workspace
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph


def lower(body: Graph, context: RegionContext) -> LoweredRegion:
    """The kernels of the search, one after another. Raises `CodegenError`."""
    node = single(body, "sample.argmax")
    if body.outputs != (node.result,) or any(v not in body.inputs for v in node.operands):
        raise CodegenError("the operands and the result of an arg-max must lie in memory")
    x = node.operands[0].type
    dtype = "bf16" if x.dtype is DType.BF16 else "f32"
    n, valid = node.attrs["n"], node.attrs["valid"]
    shape = argmax_shape(int(x.shape[1]), n, valid, dtype, context.bound("G"), context.features)
    operands = [Operand(body.inputs.index(v)) for v in node.operands]
    args: tuple[KernelArg, ...] = (operands[0], *operands, Result(0), *[Workspace()] * 3)
    assert len(args) == len(parameters(dtype))
    sizes = {"rows": shape.height, "blocks": shape.group}
    kernels = argmax_kernels(context.name, shape, context.features)
    return LoweredRegion(kernels, args, sizes, 4 * shape.layout()["end"])
