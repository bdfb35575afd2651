"""The TVM backend: every region for CPU targets, as task kernels beside a step driver."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence

from inferir.codegen.backend import Backend, BucketMeta, BuildJob, Context, LoweredBucket, LoweredKernel, Progress
from inferir.codegen.cache.cache_key import JSON, key_fields
from inferir.codegen.cache.source_hash import generator_hash
from inferir.codegen.tvm.build.parallel_build import build_many
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, scratch_bytes
from inferir.codegen.tvm.limit_kernels import LimitKernels
from inferir.codegen.tvm.prefetch_plan import prefetch_plan
from inferir.codegen.tvm.regions import lower_region
from inferir.codegen.tvm.source import TaskKernel
from inferir.codegen.tvm.tiles import TileTuning
from inferir.ir.contract.manifest import KernelParam
from inferir.ir.graph.graph import Node


class TvmBackend:
    """Shared objects for CPUs. `Context.choices` are tiles of matrix products, by `Product`."""

    name = "tvm"
    suffix = ".so"
    tuning = TileTuning()
    limit_probes = LimitKernels()

    def key(self, regions: Mapping[str, Node], context: Context) -> dict[str, JSON]:
        """The generator's source, TVM's version, and the tuned tiles of products among the regions."""
        key: dict[str, JSON] = {
            "generator": generator_hash("tvm"),
            "toolchain": {"apache-tvm": importlib.metadata.version("apache-tvm")},
        }
        tuned = sorted(context.choices.keys() & self.tuning.products(regions.values(), context).keys())
        if tuned:
            key["tiles"] = [{**key_fields(p), **key_fields(context.choices[p])} for p in tuned]
        return key

    def lower(self, regions: Mapping[str, Node], context: Context) -> LoweredBucket:
        kernels: list[TaskKernel] = []
        records: list[LoweredKernel] = []
        attn_tile, workspace = 1, 0
        prefetch = prefetch_plan(regions, context.limits)
        for digest, region in regions.items():
            name = f"k{len(kernels)}_{region.attrs['name']}"
            lowered = lower_region(name, region, context, prefetch.get(digest))
            kernels += lowered.kernels
            attn_tile = max(attn_tile, lowered.tile.get("tokens", 1))
            workspace = max(workspace, lowered.workspace_bytes)
            records += [
                LoweredKernel(
                    name=kernel.name,
                    region=digest,
                    anchor=region.attrs["anchor"],
                    params=tuple(KernelParam(name=p.name, dtype=p.dtype) for p in kernel.params),
                    args=lowered.args,
                    tile=lowered.tile,
                )
                for kernel in lowered.kernels
            ]
        meta = BucketMeta(
            kernels=tuple(records),
            scratch_bytes=scratch_bytes(kernels),
            workspace_bytes=workspace,
            attn_tile=attn_tile,
        )
        return LoweredBucket(tuple(kernels), meta)

    def module(self, kernels: Sequence[TaskKernel]) -> str:
        return bucket_module_source(kernels)

    def build(self, jobs: Sequence[BuildJob], workers: int = 1, progress: Progress | None = None) -> list[bytes]:
        return build_many(jobs, workers, progress)


BACKEND: Backend = TvmBackend()
