"""From a `kernel.region` to a chunk kernel: the driver of its anchor, with its inner graph as rows or epilogue.

`LoweredRegion.args` says what each parameter of its kernels stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from inferir.codegen.lower.decompose import decompose
from inferir.codegen.lower.rows import has_row, static_shape
from inferir.codegen.tvm.affine import Affine, Var
from inferir.codegen.tvm.evaluate import Evaluator, Index
from inferir.codegen.tvm.kernels.argmax import argmax_kernels
from inferir.codegen.tvm.kernels.argmax_parts import argmax_shape, parameters
from inferir.codegen.tvm.kernels.attention import attention_kernels
from inferir.codegen.tvm.kernels.attention_merge import workspace_bytes
from inferir.codegen.tvm.kernels.attention_parts import AttentionShape
from inferir.codegen.tvm.kernels.kv_prefetch import KV_ARGS, KvAhead
from inferir.codegen.tvm.kernels.matmul import Columns, matmul_kernel
from inferir.codegen.tvm.kernels.microkernel import reread_rows
from inferir.codegen.tvm.kernels.rowwise import count_name, row_symbol, rowwise_kernel
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.scalar import MEMORY
from inferir.codegen.tvm.source import ChunkKernel, Param, Writer, ramp
from inferir.codegen.tvm.tuning.tiles import NO_TILES, Tiles, product_of
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result, Workspace
from inferir.ir.contract.split_kv import max_partials
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import dim_str
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node, Value

ITEM_ROWS = 48  # rows (tokens times query heads per KV head) of an attention work item


@dataclass(frozen=True)
class LoweredRegion:
    """Kernels, and what each of their parameters stands for.

    kernels: with the same parameters, each to be run once all chunks of the one before are done. `tile` has the sizes
    that were chosen, and "tuned" where they are not the generator's own choice. `workspace_bytes` is how much memory
    `Workspace` stands for.
    """

    kernels: tuple[ChunkKernel, ...]
    args: tuple[KernelArg, ...]
    tile: dict[str, int] = field(default_factory=dict)
    workspace_bytes: int = 0


def lower_region(
    name: str,
    region: Node,
    bucket: Bucket,
    target: Target,
    limits: Limits,
    tiles: Tiles = NO_TILES,
    kv: KvAhead | None = None,
) -> LoweredRegion:
    """Lower one region for one bucket, a matrix product with its tile of `tiles` if it has one there.

    kv: what a product of many rows asks for beside its own weights.

    Raises `CodegenError` naming the op that has no kernel form.
    """
    body: Graph = region.attrs["body"]
    try:
        if region.attrs["anchor"] == "matmul":
            return _matmul(name, body, bucket, target, limits, tiles, kv)
        return _ANCHORS[region.attrs["anchor"]](name, body, bucket, target, limits)
    except CodegenError as error:
        raise CodegenError(f"region {region.attrs['name']} ({region.loc}): {error}") from None


def _rowwise(name: str, body: Graph, bucket: Bucket, target: Target, limits: Limits) -> LoweredRegion:
    row = row_symbol(body)
    count_name(row)  # raises for rows that are not counted
    kernel = rowwise_kernel(name, body, min(bucket.most, limits.bound(dim_str(row))))
    results = [i for i, v in enumerate(body.outputs) if v.op != "kv.write"]
    return LoweredRegion((kernel,), (*map(Operand, range(len(body.inputs))), *map(Result, results)))


def _single(body: Graph, op: str) -> Node:
    found = [n for n in body.nodes if n.op == op]
    if len(found) != 1:
        raise CodegenError(f"{len(found)} {op} ops in one region")
    return found[0]


def _strip_views(value: Value) -> Value:
    """The value under reshapes that leave memory as it is."""
    while value.op == "tensor.view":
        value = value.node.operands[0]
    return value


@dataclass
class _Epilogue:
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

        def leaf(v: Value, at: str, index: Index, lanes: int) -> str | None:
            if v is not self.linear:
                return None
            part, rest = divmod(index[0].offset, self.width)
            if rest or lanes != columns.lanes or part >= self.parts:
                raise CodegenError("an epilogue reads columns of the product other than its own")
            return evaluator.rounded(columns.acc[part], v.type.dtype, lanes)

        evaluator = Evaluator(row_axis, self.memory, out, leaf)
        column = Affine.of(Var(columns.column, self.width - columns.lanes + 1))
        for value, buffer in self.outputs:
            shape = static_shape(value.type, row_axis)
            if shape != (self.width,):
                raise CodegenError(f"an epilogue of {self.width} columns cannot produce {value.type}")
            result = evaluator.value(value, row, (column,), columns.lanes)
            if value.type.dtype is DType.BF16:
                result = call("inf_f32_to_bf16", columns.lanes, result)
            out.line(f"{buffer}[{ramp(f'{row} * {self.width} + {columns.column}', columns.lanes)}] = {result}")
        return out.text().splitlines()


def _matmul(
    name: str, body: Graph, bucket: Bucket, target: Target, limits: Limits, tiles: Tiles, kv: KvAhead | None
) -> LoweredRegion:
    body = decompose(body)
    linear = _single(body, "tensor.linear_packed")
    x, w = linear.operands
    if x not in body.inputs or w not in body.inputs:
        raise CodegenError("a matmul's operands must lie in memory")
    others = [v for v in body.inputs if v is not x and v is not w]
    extra: list[Param] = []
    memory: dict[Value, str] = {}
    args: list[KernelArg] = [Operand(body.inputs.index(x)), Operand(body.inputs.index(w))]
    for v in others:
        extra.append(_param(f"in{len(extra)}", v))
        memory[v] = f"{extra[-1].name}_b"
        args.append(Operand(body.inputs.index(v)))
    outputs: list[tuple[Value, str]] = []
    for i, v in enumerate(body.outputs):
        if not has_row(v.type, x.type.shape[0]):
            raise CodegenError(f"result {v.type} does not run along the rows of {x.type}")
        extra.append(_param(f"out{i}", v))
        outputs.append((_strip_views(v), f"{extra[-1].name}_b"))
        args.append(Result(i))
    if x.type.dtype not in (DType.BF16, DType.F32):
        raise CodegenError(f"matmul of {x.type.dtype.value} has no kernel")
    features = frozenset(target.features)
    product = product_of(linear, bucket, limits.bound("R"))
    tile = tiles.get(product) or product.default(features)
    if product.most <= reread_rows(product.dtype, features) or not tile.prefetches:
        kv = None  # memory is the limit as it is
    if kv:
        args += KV_ARGS.values()
    kernel = matmul_kernel(
        name,
        k=product.k,
        n=product.n,
        dtype=product.dtype,
        tile=tile,
        features=features,
        epilogue=_Epilogue(body, linear.result, product.interleave, memory, outputs),
        extra=extra,
        interleave=product.interleave,
        rows_symbol=count_name(x.type.shape[0]),
        kv=kv,
    )
    sizes = {"rows": tile.rows, "panel": tile.panel, "blocks": tile.blocks}
    return LoweredRegion((kernel,), tuple(args), {**sizes, "tuned": 1} if product in tiles else sizes)


def _attention(name: str, body: Graph, bucket: Bucket, target: Target, limits: Limits) -> LoweredRegion:
    node = _single(body, "attn.paged")
    if len(body.outputs) != 1 or _strip_views(body.outputs[0]) is not node.result:
        raise CodegenError("an attention kernel returns its result, reshaped at most")
    sources = [_strip_views(v) for v in node.operands]
    for v in sources:
        if v not in body.inputs:
            raise CodegenError("the operands of attention must lie in memory")
    q, vc = node.operands[0].type, node.operands[2].type
    heads, head_dim, v_dim = (int(d) for d in (q.shape[1], q.shape[2], vc.shape[3]))
    tokens = tile_tokens(heads // node.attrs["kv_heads"], bucket)
    dtype = "bf16" if q.dtype is DType.BF16 else "f32"
    kernels = attention_kernels(
        name,
        heads=heads,
        kv_heads=node.attrs["kv_heads"],
        head_dim=head_dim,
        v_dim=v_dim,
        block_size=node.attrs["block_size"],
        window=node.attrs["window"],
        softcap=node.attrs["softcap"],
        scale=node.attrs["scale"],
        dtype=dtype,
        q_row_stride=heads * head_dim,
        out_row_stride=heads * v_dim,
        tile_tokens=tokens,
        max_blocks_per_seq=limits.bound("MB"),
        features=frozenset(target.features),
    )
    args: tuple[KernelArg, ...] = (*(Operand(body.inputs.index(v)) for v in sources), Result(0), Workspace())
    shape = AttentionShape(heads, node.attrs["kv_heads"], head_dim, v_dim, node.attrs["block_size"], dtype)
    partials = max_partials(limits.max_model_len)
    return LoweredRegion(kernels, args, {"tokens": tokens}, workspace_bytes(shape, partials))


def _argmax(name: str, body: Graph, bucket: Bucket, target: Target, limits: Limits) -> LoweredRegion:
    node = _single(body, "sample.argmax")
    if body.outputs != (node.result,) or any(v not in body.inputs for v in node.operands):
        raise CodegenError("the operands and the result of an arg-max must lie in memory")
    x = node.operands[0].type
    dtype, features = ("bf16" if x.dtype is DType.BF16 else "f32"), frozenset(target.features)
    rows = min(bucket.most, limits.bound("G"))
    shape = argmax_shape(int(x.shape[1]), node.attrs["n"], node.attrs["valid"], dtype, rows, features)
    operands = [Operand(body.inputs.index(v)) for v in node.operands]
    args: tuple[KernelArg, ...] = (operands[0], *operands, Result(0), *[Workspace()] * 3)
    assert len(args) == len(parameters(dtype))
    sizes = {"rows": shape.height, "blocks": shape.group}
    return LoweredRegion(argmax_kernels(name, shape, features), args, sizes, 4 * shape.layout()["end"])


def tile_tokens(group: int, bucket: Bucket) -> int:
    """Tokens of an attention work item: one for decode, else enough rows to share what is read of the cache."""
    if bucket.decode or bucket.most == 1:
        return 1
    return max(1, min(bucket.most, ITEM_ROWS // group))


def kv_ahead(regions: Iterable[Node], limits: Limits) -> KvAhead | None:
    """What products may ask for early, if the attentions among `regions` have caches of one shape."""
    found = set()
    for region in regions:
        if region.attrs["anchor"] == "attention":
            node = _single(region.attrs["body"], "attn.paged")
            keys, values = (
                math.prod(int(d) for d in v.type.shape[1:]) * v.type.dtype.itemsize for v in node.operands[1:3]
            )
            found.add(KvAhead(keys, values, node.attrs["block_size"], limits.bound("MB")))
    return found.pop() if len(found) == 1 else None


def _param(name: str, value: Value) -> Param:
    if value.type.dtype not in MEMORY:
        raise CodegenError(f"{value.type} has no memory form")
    return Param(name, MEMORY[value.type.dtype])


_ANCHORS = {"rowwise": _rowwise, "attention": _attention, "argmax": _argmax}
