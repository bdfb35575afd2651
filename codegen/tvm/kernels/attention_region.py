"""Regions of paged attention."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.attention import attention_kernels
from inferir.codegen.tvm.kernels.attention_merge import workspace_bytes
from inferir.codegen.tvm.kernels.attention_parts import AttentionShape
from inferir.codegen.tvm.regions import LoweredRegion, RegionContext, single, strip_views
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result, Workspace
from inferir.ir.contract.split_kv import max_partials
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph

ITEM_ROWS = 48  # rows (tokens times query heads per KV head) of an attention work item


def lower(body: Graph, context: RegionContext) -> LoweredRegion:
    """The kernel over work items, and the one that merges split sequences. Raises `CodegenError`."""
    node = single(body, "attn.paged")
    if len(body.outputs) != 1 or strip_views(body.outputs[0]) is not node.result:
        raise CodegenError("an attention kernel returns its result, reshaped at most")
    sources = [strip_views(v) for v in node.operands]
    for v in sources:
        if v not in body.inputs:
            raise CodegenError("the operands of attention must lie in memory")
    q, vc = node.operands[0].type, node.operands[2].type
    heads, head_dim, v_dim = (int(d) for d in (q.shape[1], q.shape[2], vc.shape[3]))
    tokens = tile_tokens(heads // node.attrs["kv_heads"], context.bucket)
    dtype = "bf16" if q.dtype is DType.BF16 else "f32"
    kernels = attention_kernels(
        context.name,
        heads=heads,
        kv_heads=node.attrs["kv_heads"],
        head_dim=head_dim,
        v_dim=v_dim,
        block_size=node.attrs["block_size"],
        reads=node.attrs["reads"],
        softcap=node.attrs["softcap"],
        scale=node.attrs["scale"],
        dtype=dtype,
        q_row_stride=heads * head_dim,
        out_row_stride=heads * v_dim,
        tile_tokens=tokens,
        max_blocks_per_seq=context.limits.bound("MB"),
        features=context.features,
    )
    args: tuple[KernelArg, ...] = (*(Operand(body.inputs.index(v)) for v in sources), Result(0), Workspace())
    shape = AttentionShape(heads, node.attrs["kv_heads"], head_dim, v_dim, node.attrs["block_size"], dtype)
    partials = max_partials(context.limits.max_model_len)
    return LoweredRegion(kernels, args, {"tokens": tokens}, workspace_bytes(shape, partials))


def tile_tokens(group: int, bucket: Bucket) -> int:
    """Tokens of an attention work item: one for decode, else enough rows to share what is read of the cache."""
    if bucket.decode or bucket.most == 1:
        return 1
    return max(1, min(bucket.most, ITEM_ROWS // group))
