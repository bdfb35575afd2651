"""The Triton backend."""

from __future__ import annotations

from inferir.codegen.backend import KernelSource
from inferir.codegen.triton.rowwise import lower_rowwise
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Node


class TritonBackend:
    """Row-wise regions for CUDA targets. Matrix products and attention have no form here yet.

    Kernels do not depend on the bucket: a row is computed in the same way whatever runs beside it.
    """

    name = "triton"

    def supports(self, region: Node, bucket: Bucket, target: Target) -> str | None:
        """None if the region can be lowered, else the reason why not."""
        try:
            self.lower("probe", region, bucket, target)
        except CodegenError as error:
            return str(error)
        return None

    def lower(self, name: str, region: Node, bucket: Bucket, target: Target) -> KernelSource:
        """The region as a module with one `triton.jit` function. Raises `CodegenError` naming region and reason."""
        if target.kind != "cuda":
            raise CodegenError(f"the Triton backend makes kernels for CUDA targets, not for {target.name}")
        where = f"region {region.attrs['name']}"
        anchor = region.attrs["anchor"]
        if anchor != "rowwise":
            raise CodegenError(f"{where}: the Triton backend has no {anchor} driver, only row-wise kernels")
        try:
            return lower_rowwise(name, region.attrs["body"])
        except CodegenError as error:
            raise CodegenError(f"{where}: {error}") from None

    def build(self, kernel: KernelSource, bucket: Bucket, target: Target) -> bytes:
        """A `GpuKernel` as bytes: cubin and launch metadata. Raises `CodegenError`."""
        from inferir.codegen.triton.build.compile_kernel import compile_kernel

        return compile_kernel(kernel, target).to_bytes()
