"""Libraries for races: one matrix product with several tiles, each a kernel of its own beside the step driver."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache, Entry
from inferir.codegen.cache.plugin_key import keyed
from inferir.codegen.tvm.bucket_library import LIBRARY, generator_hash, toolchain
from inferir.codegen.tvm.build.parallel_build import BuildJob, Progress, build_many
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, row_words, scratch_bytes
from inferir.codegen.tvm.kernels.matmul import MatmulTile
from inferir.codegen.tvm.regions import lower_region
from inferir.codegen.tvm.tuning.tiles import Product, candidates
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import KernelArg
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Node

KIND = "tiles"


@dataclass(frozen=True)
class Race:
    """The module of one product: kernel i computes `region` with `tiles[i]`, and the first tile is the default.

    `args` says what each parameter stands for; `row_words` and `scratch_bytes` are what the
    step driver needs to know.
    """

    product: Product
    region: Node
    tiles: tuple[MatmulTile, ...]
    source: str
    args: tuple[KernelArg, ...]
    row_words: int
    scratch_bytes: int


def lower_race(product: Product, region: Node, bucket: Bucket, target: Target, limits: Limits) -> Race:
    """Lower `region` once per candidate. Raises `CodegenError`."""
    tiles = candidates(product, frozenset(target.features))
    lowered = [lower_region(f"c{i}", region, bucket, target, limits, {product: tile}) for i, tile in enumerate(tiles)]
    kernels = [one.kernels[0] for one in lowered]
    return Race(
        product,
        region,
        tiles,
        bucket_module_source(kernels),
        lowered[0].args,
        row_words(kernels),
        scratch_bytes(kernels),
    )


def build_races(
    races: Sequence[Race], target: Target, cache: CompileCache, jobs: int = 1, progress: Progress | None = None
) -> list[bytes]:
    """The libraries of all races, from the cache where they are stored. Raises `CodegenError` and `CacheError`."""
    keys = [_key(race, target) for race in races]
    found = [cache.get(KIND, key) for key in keys]
    missing = [i for i, entry in enumerate(found) if not isinstance(entry, Entry)]
    built: dict[int, bytes] = {}
    if missing:
        cache.require_writable()
        work = [BuildJob(str(races[i].product), races[i].source, target) for i in missing]
        built = dict(zip(missing, build_many(work, jobs, progress), strict=True))
        for i, library in built.items():
            cache.put(KIND, keys[i], {LIBRARY: library})
    return [entry.files[LIBRARY] if isinstance(entry, Entry) else built[i] for i, entry in enumerate(found)]


def _key(race: Race, target: Target) -> CacheKey:
    return keyed(
        source=hashlib.sha256(race.source.encode()).hexdigest(),
        product=str(race.product),
        candidates=len(race.tiles),
        target=target.record(),
        generator=generator_hash(),
        toolchain=toolchain(),
    )
