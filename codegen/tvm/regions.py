"""From a `kernel.region` to task kernels: the lowering of its anchor, with its inner graph as rows or epilogue.

`LoweredRegion.args` says what each parameter of its kernels stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferir.codegen.backend import Context
from inferir.codegen.lower.anchors import Anchors, lowerings
from inferir.codegen.tvm.kernels.kv_prefetch import KvPrefetch
from inferir.codegen.tvm.scalar import MEMORY
from inferir.codegen.tvm.source import Param, TaskKernel
from inferir.ir.contract.kernel_args import KernelArg
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Graph, Node, Value

LOWERINGS = lowerings("tvm_regions", "inferir.codegen.tvm.kernels")
"""By anchor: (body, `RegionContext`) -> `LoweredRegion`."""

ANCHORS = Anchors("TVM", LOWERINGS)


@dataclass(frozen=True)
class LoweredRegion:
    """Kernels, and what each of their parameters stands for.

    kernels: with the same parameters, each to be run once all tasks of the one before are done. `tile` has the sizes
    that were chosen, and "tuned" where they are not the generator's own choice. `workspace_bytes` is how much memory
    `Workspace` stands for.
    """

    kernels: tuple[TaskKernel, ...]
    args: tuple[KernelArg, ...]
    tile: dict[str, int] = field(default_factory=dict)
    workspace_bytes: int = 0


@dataclass(frozen=True)
class RegionContext(Context):
    """What a lowering is given beside the region's body.

    name: that of the kernel, or the first part of it where there are several; prefetch: what a product of many rows
    prefetches beside its own weights.
    """

    name: str = "k"
    prefetch: KvPrefetch | None = None

    @property
    def features(self) -> frozenset[str]:
        return frozenset(self.target.features)

    def bound(self, symbol: str) -> int:
        """The most rows of an axis `symbol` in a step of this bucket."""
        return min(self.bucket.most, self.limits.bound(symbol))


def lower_region(name: str, region: Node, context: Context, prefetch: KvPrefetch | None = None) -> LoweredRegion:
    """Lower one region; `context.choices` are the tiles of matrix products that are not the default ones.

    Raises `CodegenError` naming the op that has no kernel form.
    """
    own = RegionContext(context.bucket, context.target, context.limits, context.choices, name, prefetch)
    try:
        lowered: LoweredRegion = ANCHORS.lower(region.attrs["anchor"])(region.attrs["body"], own)
    except CodegenError as error:
        raise CodegenError(f"region {region.attrs['name']} ({region.loc}): {error}") from None
    return lowered


def single(body: Graph, op: str) -> Node:
    """The one node of this op. Raises `CodegenError` if there are more, or none."""
    found = [n for n in body.nodes if n.op == op]
    if len(found) != 1:
        raise CodegenError(f"{len(found)} {op} ops in one region")
    return found[0]


def strip_views(value: Value) -> Value:
    """The value under reshapes that leave memory as it is."""
    while value.op == "tensor.view":
        value = value.node.operands[0]
    return value


def parameter(name: str, value: Value) -> Param:
    """The pointer parameter for a value. Raises `CodegenError` if its type has no memory form."""
    if value.type.dtype not in MEMORY:
        raise CodegenError(f"{value.type} has no memory form")
    return Param(name, MEMORY[value.type.dtype])
