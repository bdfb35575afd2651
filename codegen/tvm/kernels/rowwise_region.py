"""Row-wise regions."""

from __future__ import annotations

from inferir.codegen.lower.rows import row_symbol
from inferir.codegen.tvm.kernels.rowwise import count_name, rowwise_kernel
from inferir.codegen.tvm.regions import LoweredRegion, RegionContext
from inferir.ir.contract.kernel_args import Operand, Result
from inferir.ir.graph.dims import dim_str
from inferir.ir.graph.graph import Graph


def lower(body: Graph, context: RegionContext) -> LoweredRegion:
    """One kernel. Raises `CodegenError` naming the op that has no row-wise form."""
    row = row_symbol(body)
    count_name(row)  # raises for rows that are not counted
    kernel = rowwise_kernel(context.name, body, context.bound(dim_str(row)))
    results = [i for i, v in enumerate(body.outputs) if v.op != "kv.write"]
    return LoweredRegion((kernel,), (*map(Operand, range(len(body.inputs))), *map(Result, results)))
