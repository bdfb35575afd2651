"""The library of every bucket: distinct regions, lowered and built by a backend, and kept in the cache.

The cache key of a bucket is the canonical text of its regions, the bucket, the limits, the target record and whatever
the backend adds: the hash of the generator's own source, its tools' versions, tuned choices that apply. Provenance is
not part of it: a model of the same shape hits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from inferir.codegen.backend import Backend, BucketMeta, BuildJob, Context, LoweredBucket, Progress
from inferir.codegen.cache.cache_key import CacheKey, key_fields
from inferir.codegen.cache.compile_cache import CompileCache, Entry
from inferir.codegen.cache.plugin_key import keyed
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.manifest import KernelRecord
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Graph, Node

KIND = "bucket"
SOURCE, KERNELS = "module.py", "kernels.json"


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


def bucket_key(backend: Backend, regions: Mapping[str, Node], context: Context) -> CacheKey:
    """What decides the library of a bucket."""
    # The bucket says how many tokens a step has; of the limit, only what it means for rows counts.
    limits = {**key_fields(context.limits, ignore=frozenset({"max_tokens"})), "rows": context.limits.bound("R")}
    return keyed(
        regions=list(regions),
        bucket=key_fields(context.bucket),
        limits=limits,
        target=context.target.record(),
        backend=backend.name,
        **backend.key(regions, context),
    )


def lower_bucket(backend: Backend, regions: Mapping[str, Node], context: Context) -> LoweredBucket:
    """The kernels of a bucket. Raises `CodegenError` with all regions that the backend has no kernels for."""
    try:
        return backend.lower(regions, context)
    except CodegenError:
        refused = [
            f"{reason}; {region.operands[0].type if region.operands else 'nothing'} to "
            f"{', '.join(map(str, region.types))} in {region.loc.module or 'the model'}"
            for region in regions.values()
            if (reason := backend.supports(region, context)) is not None
        ]
        if len(refused) < 2:
            raise
        raise CodegenError(
            f"{context.target.name}: the {backend.name} backend has kernels for {len(regions) - len(refused)} of "
            f"{len(regions)} distinct regions of this model, and none yet for the others",
            details=tuple(refused),
        ) from None


def build_buckets(
    backend: Backend,
    regions: Iterable[Node],
    contexts: Sequence[Context],
    cache: CompileCache,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[BuiltBucket]:
    """The libraries of all buckets, from the cache where they are stored, else built in up to `jobs` processes.

    Raises `CodegenError` for regions without kernels or a failed build, `CacheError` if a result cannot be stored.
    """
    unique = distinct(regions)
    found: dict[Bucket, BuiltBucket] = {}
    missing: list[tuple[Context, CacheKey, str]] = []
    library = f"module{backend.suffix}"
    for context in contexts:
        key = bucket_key(backend, unique, context)
        entry = cache.get(KIND, key)
        if isinstance(entry, Entry):
            meta = msgspec.json.decode(entry.files[KERNELS], type=BucketMeta)
            text = entry.files[SOURCE].decode()
            found[context.bucket] = BuiltBucket(context.bucket, meta, entry.files[library], text, hit=True)
        else:
            missing.append((context, key, entry.reason))
    done = len(found)
    if progress is not None:
        progress(done, len(contexts))
    if missing:
        cache.require_writable()
        work = []
        metas = []
        for context, _, _ in missing:
            lowered = lower_bucket(backend, unique, context)
            metas.append(lowered.meta)
            text = backend.module(lowered.kernels)
            work.append(BuildJob(context.bucket.name, text, context.target, lowered.meta.kernels))

        def step(finished: int, total: int) -> None:
            if progress is not None:
                progress(done + finished, len(contexts))

        for (context, key, reason), job, meta, code in zip(
            missing, work, metas, backend.build(work, jobs, step), strict=True
        ):
            cache.put(KIND, key, {library: code, SOURCE: job.source.encode(), KERNELS: msgspec.json.encode(meta)})
            found[context.bucket] = BuiltBucket(context.bucket, meta, code, job.source, hit=False, reason=reason)
    return [found[c.bucket] for c in contexts]
