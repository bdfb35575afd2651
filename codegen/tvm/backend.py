"""The TVM backend: every region for CPU targets."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferir.codegen.backend import KernelSource
from inferir.codegen.tvm.build.build_module import build_module
from inferir.codegen.tvm.driver.step_driver import bucket_module_source
from inferir.codegen.tvm.kernels.kv_prefetch import KvAhead
from inferir.codegen.tvm.regions import LoweredRegion, lower_region
from inferir.codegen.tvm.tuning.tiles import Tiles
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Node


@dataclass(frozen=True)
class TvmBackend:
    """Row-wise, matmul and attention regions as TVMScript chunk kernels.

    The product joins all kernels of a bucket and the step driver into one library (`bucket.build_buckets`); `lower` and
    `build` do the same for a single kernel. `tiles` replace the default ones of matrix products.
    """

    limits: Limits
    tiles: Tiles = field(default_factory=dict)
    name = "tvm"

    def supports(self, region: Node, bucket: Bucket, target: Target) -> str | None:
        """None if the region can be lowered, else the reason why not."""
        try:
            self.chunk_kernel("probe", region, bucket, target)
        except CodegenError as error:
            return str(error)
        return None

    def chunk_kernel(
        self, name: str, region: Node, bucket: Bucket, target: Target, kv: KvAhead | None = None
    ) -> LoweredRegion:
        """The region as chunk kernels; `kv` as in `lower_region`. Raises `CodegenError` naming region and reason."""
        if target.kind != "cpu":
            raise CodegenError(f"the TVM backend makes kernels for CPU targets, not for {target.name}")
        return lower_region(name, region, bucket, target, self.limits, self.tiles, kv)

    def lower(self, name: str, region: Node, bucket: Bucket, target: Target) -> KernelSource:
        """The region as the text of a module with its kernels alone. Raises `CodegenError`."""
        lowered = self.chunk_kernel(name, region, bucket, target)
        params = tuple((p.name, p.dtype) for p in lowered.kernels[0].params)
        return KernelSource(name, bucket_module_source(lowered.kernels), lowered.args, params, lowered.tile)

    def build(self, kernel: KernelSource, bucket: Bucket, target: Target) -> bytes:
        """A shared object with plain C symbols. Raises `CodegenError`."""
        return build_module(kernel.text, target)
