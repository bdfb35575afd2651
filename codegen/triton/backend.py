"""The Triton backend: kernels for CUDA targets, compiled ahead of time."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence

from inferir.codegen.backend import Backend, BucketMeta, BuildJob, Context, LoweredBucket, LoweredKernel, Progress
from inferir.codegen.cache.cache_key import JSON
from inferir.codegen.cache.source_hash import generator_hash
from inferir.codegen.lower.anchors import Anchors, lowerings
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.contract.manifest import KernelParam
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Node

LOWERINGS = lowerings("triton_regions", "inferir.codegen.triton.kernels")
"""By anchor: (body, name of the kernel) -> `KernelSource`."""

ANCHORS = Anchors("Triton", LOWERINGS)


class TritonBackend:
    """A library is a `GpuLibrary`: the device code of every kernel and how to launch it.

    Kernels do not depend on the bucket: a row is computed in the same way whatever runs beside it.
    """

    name = "triton"
    suffix = ".cubins"

    def key(self, regions: Mapping[str, Node], context: Context) -> dict[str, JSON]:
        """The generator's source and Triton's version, which comes with a `ptxas` of its own."""
        return {
            "generator": generator_hash("triton"),
            "toolchain": {"triton": importlib.metadata.version("triton")},
        }

    def lower(self, regions: Mapping[str, Node], context: Context) -> LoweredBucket:
        kernels = [lower_region(f"k{i}_{r.attrs['name']}", r) for i, r in enumerate(regions.values())]
        records = [
            LoweredKernel(
                name=kernel.name,
                region=digest,
                anchor=region.attrs["anchor"],
                params=tuple(KernelParam(name=name, dtype=dtype) for name, dtype in kernel.params),
                args=kernel.args,
                tile=dict(kernel.tile),
                grid=kernel.grid,
            )
            for kernel, (digest, region) in zip(kernels, regions.items(), strict=True)
        ]
        return LoweredBucket(tuple(kernels), BucketMeta(kernels=tuple(records)))

    def module(self, kernels: Sequence[KernelSource]) -> str:
        """A Python module with a `triton.jit` function per kernel."""
        return "\n\n".join(kernel.source for kernel in kernels)

    def build(self, jobs: Sequence[BuildJob], workers: int = 1, progress: Progress | None = None) -> list[bytes]:
        """Every kernel of every module, in this process; buckets that share a text share their kernels."""
        from inferir.codegen.triton.compile_kernel import compile_library

        built: dict[str, bytes] = {}
        for done, job in enumerate(jobs, 1):
            if job.source not in built:
                built[job.source] = compile_library(job)
            if progress is not None:
                progress(done, len(jobs))
        return [built[job.source] for job in jobs]


def lower_region(name: str, region: Node) -> KernelSource:
    """The region as a module with one `triton.jit` function. Raises `CodegenError` naming region and reason."""
    try:
        kernel: KernelSource = ANCHORS.lower(region.attrs["anchor"])(region.attrs["body"], name)
    except CodegenError as error:
        raise CodegenError(f"region {region.attrs['name']}: {error}") from None
    return kernel


BACKEND: Backend = TritonBackend()
