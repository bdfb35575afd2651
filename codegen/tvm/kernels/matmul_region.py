"""Matrix products with their epilogue: the elementwise ops behind a product, on its accumulators."""

from __future__ import annotations

from dataclasses import dataclass

from inferir.codegen.lower.decompose import decompose
from inferir.codegen.lower.emitter import Place
from inferir.codegen.lower.index import Index, Var
from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.tvm.emitter import TvmEmitter, stored
from inferir.codegen.tvm.kernels.kv_prefetch import KV_ARGS
from inferir.codegen.tvm.kernels.matmul import Columns, choose_tile, matmul_kernel, micro_of
from inferir.codegen.tvm.kernels.rowwise_region import count_name
from inferir.codegen.tvm.regions import LoweredRegion, RegionContext, parameter, single, strip_views
from inferir.codegen.tvm.scalar import OPS
from inferir.codegen.tvm.source import Param, Writer, ramp
from inferir.codegen.tvm.tiles import product_of
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Value


def lower(body: Graph, context: RegionContext) -> LoweredRegion:
    """One kernel. Raises `CodegenError` naming what has no form in an epilogue."""
    body = decompose(body, OPS)
    linear = single(body, "tensor.linear_packed")
    x = linear.operands[0]
    if any(v not in body.inputs for v in linear.operands):
        raise CodegenError("a matmul's operands must lie in memory")
    others = [v for v in body.inputs if v not in linear.operands]
    extra: list[Param] = []
    memory: dict[Value, str] = {}
    args: list[KernelArg] = [Operand(body.inputs.index(v)) for v in linear.operands]
    for v in others:
        extra.append(parameter(f"in{len(extra)}", v))
        memory[v] = f"{extra[-1].name}_b"
        args.append(Operand(body.inputs.index(v)))
    outputs: list[tuple[Value, str]] = []
    for i, v in enumerate(body.outputs):
        if not has_row(v.type, x.type.shape[0]):
            raise CodegenError(f"result {v.type} does not run along the rows of {x.type}")
        extra.append(parameter(f"out{i}", v))
        outputs.append((strip_views(v), f"{extra[-1].name}_b"))
        args.append(Result(i))
    if x.type.dtype not in (DType.BF16, DType.F32):
        raise CodegenError(f"matmul of {x.type.dtype.value} has no kernel")
    product = product_of(linear, context.bucket, context.limits.bound("R"))
    micro = micro_of(product)
    tile = context.choices.get(product) or choose_tile(product, context.features)
    kv = context.prefetch
    if product.most <= micro.reread_rows(context.features) or not (tile.prefetches and micro.prefetches):
        kv = None  # memory is the limit as it is
    if kv:
        args += KV_ARGS.values()
    kernel = matmul_kernel(
        context.name,
        product,
        tile=tile,
        features=context.features,
        epilogue=Epilogue(body, linear.result, product.interleave, memory, outputs),
        extra=extra,
        rows_symbol=count_name(x.type.shape[0]),
        kv=kv,
    )
    sizes = {"rows": tile.rows, "panel": tile.panel, "blocks": tile.blocks}
    return LoweredRegion((kernel,), tuple(args), {**sizes, "tuned": 1} if product in context.choices else sizes)


@dataclass
class Epilogue:
    """Writes the elementwise ops behind a matmul for one run of columns."""

    body: Graph
    linear: Value
    parts: int
    memory: dict[Value, str]
    outputs: list[tuple[Value, str]]  # value and buffer

    @property
    def width(self) -> int:
        """Output columns: those of one part."""
        return int(self.linear.type.shape[1]) // self.parts

    def __call__(self, row: str, columns: Columns) -> list[str]:
        row_axis = self.linear.type.shape[0]
        out = Writer()

        def product(e: TvmEmitter, v: Value, place: Place) -> str | None:
            if v is not self.linear:
                return None
            part, rest = divmod(place.index[0].offset, self.width)
            if rest or place.lanes != columns.lanes or part >= self.parts:
                raise CodegenError("an epilogue reads columns of the product other than its own")
            return e.walk.rounded(columns.acc[part], v.type.dtype, place)

        emitter = TvmEmitter(row_axis, self.memory, out, product, row=row)
        column = Index.of(Var(columns.column, self.width - columns.lanes + 1))
        for value, buffer in self.outputs:
            shape = static_shape(value.type, row_axis)
            if shape != (self.width,):
                raise CodegenError(f"an epilogue of {self.width} columns cannot produce {value.type}")
            result = stored(emitter.value(value, (column,), columns.lanes), value.type.dtype, columns.lanes)
            out.line(f"{buffer}[{ramp(f'{row} * {self.width} + {columns.column}', columns.lanes)}] = {result}")
        return out.text().splitlines()
