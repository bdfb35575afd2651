"""The library of one bucket: its distinct regions lowered, joined with the step driver, built, and kept in the cache.

The cache key of a bucket is the canonical text of its regions, the bucket, the limits, the target record, the hash of
the generator's own source, the toolchain's versions, and the tuned tiles of its products if there are any. Provenance
is not part of it: a model of the same shape hits.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from inferir import ir as ir_package
from inferir.codegen.cache.cache_key import JSON, CacheKey, key_fields, source_hash
from inferir.codegen.cache.compile_cache import CompileCache, Entry
from inferir.codegen.cache.plugin_key import keyed
from inferir.codegen.tvm.backend import TvmBackend
from inferir.codegen.tvm.build.parallel_build import BuildJob, build_many
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, scratch_bytes
from inferir.codegen.tvm.kernels.kv_prefetch import KvAhead
from inferir.codegen.tvm.regions import kv_ahead
from inferir.codegen.tvm.source import ChunkKernel
from inferir.codegen.tvm.tuning.tiles import NO_TILES, Product, Tiles, product_of
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.kernel_args import KernelArg
from inferir.ir.contract.manifest import KernelParam, KernelRecord
from inferir.ir.contract.symbols import Limits
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import T
from inferir.ir.graph.graph import Graph, Node

KIND = "bucket"
SHARING = 4  # products that ask for keys and values between two attentions
LIBRARY, SOURCE, KERNELS = "module.so", "module.py", "kernels.json"

Progress = Callable[[int, int], None]


class LoweredKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kernel besides its code; `args` says what each of its `params` stands for."""

    name: str
    region: str
    anchor: str
    params: tuple[KernelParam, ...]
    args: tuple[KernelArg, ...]
    tile: dict[str, int]


class BucketMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a library in dispatch order, what each thread's scratch memory must hold, and what the memory must
    hold that all threads share within a region.
    """

    kernels: tuple[LoweredKernel, ...]
    scratch_bytes: int
    workspace_bytes: int
    attn_tile: int


@dataclass(frozen=True)
class BuiltBucket:
    """A bucket's library. `hit`: it came from the cache; else `reason` says what differed from what is stored."""

    bucket: Bucket
    meta: BucketMeta
    library: bytes
    source: str
    hit: bool
    reason: str = ""

    def kernels_of(self, region: Node) -> list[int]:
        """Numbers of the kernels that compute `region`, in order. Raises `CodegenError` if there is none."""
        digest = region_digest(region)
        found = [i for i, kernel in enumerate(self.meta.kernels) if kernel.region == digest]
        if not found:
            raise CodegenError(f"bucket {self.bucket.name} has no kernel for region {region.attrs['name']}")
        return found

    def records(self, provenance: Mapping[str, Sequence[str]]) -> tuple[KernelRecord, ...]:
        """Manifest records; `provenance` gives the module paths by region digest."""
        return tuple(
            KernelRecord(
                id=i,
                name=k.name,
                region=k.region,
                anchor=k.anchor,
                params=k.params,
                tile=k.tile,
                provenance=tuple(provenance.get(k.region, ())),
            )
            for i, k in enumerate(self.meta.kernels)
        )


_digests: dict[int, tuple[Graph, str]] = {}


def region_digest(region: Node) -> str:
    """Digest of a region's anchor and body: equal for equal work, whichever layer it is for."""
    body: Graph = region.attrs["body"]
    known = _digests.get(id(body))
    if known is None or known[0] is not body:
        text = f"{region.attrs['anchor']} {region.attrs['name']} {body.structural_hash()}"
        known = _digests[id(body)] = (body, hashlib.sha256(text.encode()).hexdigest())
    return known[1]


def distinct(regions: Iterable[Node]) -> dict[str, Node]:
    """The first region of every digest, in order."""
    out: dict[str, Node] = {}
    for region in regions:
        out.setdefault(region_digest(region), region)
    return out


@cache
def generator_hash() -> str:
    """Digest of the source of this code generator, of what it shares with others, and of the IR's ops."""
    here = Path(__file__).resolve().parent
    ir = Path(ir_package.__file__).resolve().parent
    return source_hash(
        [
            here,
            here.parent / "lower",
            ir / "ops",
            ir / "contract",
            ir / "graph" / "dims.py",
            ir / "graph" / "dtypes.py",
            ir / "graph" / "graph.py",
            ir / "graph" / "registry.py",
        ]
    )


@cache
def toolchain() -> dict[str, str]:
    """Versions of the tools that turn text into code."""
    return {"apache-tvm": importlib.metadata.version("apache-tvm")}


def products(regions: Iterable[Node], bucket: Bucket, limits: Limits) -> dict[Product, Node]:
    """The matrix products of a bucket, each with the first region that computes it."""
    found: dict[Product, Node] = {}
    for region in regions:
        linear = _linear(region)
        if linear is not None:
            found.setdefault(product_of(linear, bucket, limits.bound("R")), region)
    return found


def _linear(region: Node) -> Node | None:
    """The product that a region multiplies, if it is one."""
    body: Graph = region.attrs["body"]
    linear = next((n for n in body.nodes if n.op == "tensor.linear_packed"), None)
    return linear if region.attrs["anchor"] == "matmul" else None


def token_products(regions: Mapping[str, Node]) -> dict[str, int]:
    """Multiply-adds per row of the products over the rows of all tokens, by digest."""
    sizes: dict[str, int] = {}
    for digest, region in regions.items():
        linear = _linear(region)
        if linear is not None and linear.operands[0].type.shape[0] == T:
            sizes[digest] = linear.attrs["n"] * int(linear.operands[0].type.shape[1])
    return sizes


def key_value_shares(sizes: Mapping[str, int], kv: KvAhead | None) -> dict[str, KvAhead]:
    """What products ask for early, by digest: the one of largest size for a half of `kv`, the next for a half of the
    rest, and so on, since memory rests longest while much is multiplied."""
    if kv is None:
        return {}
    largest = sorted(sizes, key=lambda digest: -sizes[digest])[:SHARING]
    last = len(largest) - 1
    places = [(2**i - 1, 2 ** (i if i == last else i + 1)) for i in range(len(largest))]
    return {d: replace(kv, first=first, stride=stride) for d, (first, stride) in zip(largest, places, strict=True)}


def bucket_key(
    regions: Mapping[str, Node], bucket: Bucket, target: Target, limits: Limits, tiles: Tiles = NO_TILES
) -> CacheKey:
    components: dict[str, JSON] = {
        "regions": list(regions),
        "bucket": key_fields(bucket),
        # The bucket says how many tokens a step has; of the limit, only what it means for rows counts.
        "limits": {**key_fields(limits, ignore=frozenset({"max_tokens"})), "rows": limits.bound("R")},
        "target": target.record(),
        "generator": generator_hash(),
        "toolchain": toolchain(),
    }
    tuned = sorted(tiles.keys() & products(regions.values(), bucket, limits).keys())
    if tuned:
        components["tiles"] = [{**key_fields(p), **key_fields(tiles[p])} for p in tuned]
    return keyed(**components)


def lower_bucket(
    regions: Mapping[str, Node], bucket: Bucket, target: Target, limits: Limits, tiles: Tiles = NO_TILES
) -> tuple[str, BucketMeta]:
    """Module text and kernel records. Raises `CodegenError` naming the region that cannot be lowered."""
    backend = TvmBackend(limits, tiles)
    kernels: list[ChunkKernel] = []
    records: list[LoweredKernel] = []
    attn_tile, workspace = 1, 0
    shares = key_value_shares(token_products(regions), kv_ahead(regions.values(), limits))
    for digest, region in regions.items():
        name = f"k{len(kernels)}_{region.attrs['name']}"
        lowered = backend.chunk_kernel(name, region, bucket, target, shares.get(digest))
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
    return bucket_module_source(kernels), meta


def build_buckets(
    regions: Iterable[Node],
    buckets: Sequence[Bucket],
    target: Target,
    limits: Limits,
    cache: CompileCache,
    jobs: int = 1,
    progress: Progress | None = None,
    tiles: Tiles = NO_TILES,
) -> list[BuiltBucket]:
    """The libraries of all buckets, from the cache where they are stored, else built in up to `jobs` processes.

    `tiles` replace the default ones of matrix products.

    Raises `CodegenError` for a region without kernel or a failed build, `CacheError` if a result cannot be stored.
    """
    unique = distinct(regions)
    keys = [bucket_key(unique, b, target, limits, tiles) for b in buckets]
    found: dict[Bucket, BuiltBucket] = {}
    missing: list[tuple[Bucket, CacheKey, str]] = []
    for bucket, key in zip(buckets, keys, strict=True):
        entry = cache.get(KIND, key)
        if isinstance(entry, Entry):
            meta = msgspec.json.decode(entry.files[KERNELS], type=BucketMeta)
            found[bucket] = BuiltBucket(bucket, meta, entry.files[LIBRARY], entry.files[SOURCE].decode(), hit=True)
        else:
            missing.append((bucket, key, entry.reason))
    if progress is not None:
        progress(len(found), len(buckets))
    if missing:
        cache.require_writable()
        lowered = [lower_bucket(unique, bucket, target, limits, tiles) for bucket, _, _ in missing]
        work = [BuildJob(b.name, text, target) for (b, _, _), (text, _) in zip(missing, lowered, strict=True)]
        done = len(found)

        def step(finished: int, total: int) -> None:
            if progress is not None:
                progress(done + finished, len(buckets))

        libraries = build_many(work, jobs, step)
        for (bucket, key, reason), (text, meta), library in zip(missing, lowered, libraries, strict=True):
            files = {LIBRARY: library, SOURCE: text.encode(), KERNELS: msgspec.json.encode(meta)}
            cache.put(KIND, key, files)
            found[bucket] = BuiltBucket(bucket, meta, library, text, hit=False, reason=reason)
    return [found[b] for b in buckets]
