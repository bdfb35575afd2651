"""`sample.argmax`: the most likely token of each row, without most of the last matrix.

Five kernels, run one after another over memory that they share:

1. prepare: every row as integers n of two bytes, low + 256 * high, scaled so that few are above one byte; per tile of
   rows the list of steps with high bytes.
2. prefilter: products of weights in int8 (`layout.pack_int8_rows`) with low bytes, and with high bytes for the steps of
   the list; per row and block of 64 outputs the largest upper bound of a logit.
3. floor: per row the exact products, in the arithmetic of `matmul.py`, with the few blocks that have the largest upper
   bounds. No output whose upper bound is below what is found there can be the maximum.
4. rescore: the exact product of a row and a block where the block's upper bound reaches the row's floor; per row and
   range of blocks the first maximum.
5. pick: the first maximum of all.

What is read is a byte per weight and the few blocks that are rescored, and the token is that of the full product bit
for bit, since bounds only decide what is left out. They hold for any finite row; of a row with an infinity or NaN in
it, or close to zero throughout, every block is rescored.
"""

from __future__ import annotations

from inferir.codegen.tvm.kernels.argmax_parts import ArgmaxShape, argmax_shape, parameters
from inferir.codegen.tvm.kernels.argmax_prefilter import prefilter
from inferir.codegen.tvm.kernels.argmax_prepare import prepare
from inferir.codegen.tvm.kernels.argmax_rescore import find_floor, pick, rescore
from inferir.codegen.tvm.regions import LoweredRegion, RegionContext, single
from inferir.codegen.tvm.source import TaskKernel
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


def argmax_kernels(name: str, s: ArgmaxShape, features: frozenset[str]) -> tuple[TaskKernel, ...]:
    """The kernels of one `sample.argmax`, to be run in this order. `features` are LLVM feature names."""
    return (
        prepare(name, s),
        prefilter(name, s, features),
        find_floor(name, s, features),
        rescore(name, s, features),
        pick(name, s),
    )
