"""The library of every bucket: distinct regions, lowered and built by a backend, and kept in the cache.

The cache key of a bucket is the canonical text of its regions, the bucket, the limits, the target record and whatever
the backend adds: the hash of the generator's own source, its tools' versions, tuned choices that apply. Provenance is
not part of it: a model of the same shape hits.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from inferir.codegen.backend import Backend, BucketMeta, BuildJob, Context, LoweredBucket, Progress
from inferir.codegen.cache.cache_key import JSON, CacheKey, key_fields
from inferir.codegen.cache.compile_cache import CompileCache, Entry
from inferir.codegen.cache.source_hash import keyed
from inferir.codegen.overrides import override_kernels
from inferir.codegen.stages import LIBRARY, NO_STAGES, SOURCE, Stages
from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.manifest import KernelRecord
from inferir.ir.errors import CodegenError
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.system.quantities import count, seconds

KIND = "bucket"
log = logging.getLogger(__name__)
KERNELS = "kernels.json"


@dataclass(frozen=True)
class BuiltBucket:
    """A bucket's library, whose file name ends in `suffix`, and the text it was built from.

    replaced: digests of the stages that came from files, by their names.
    """

    bucket: Bucket
    meta: BucketMeta
    library: bytes
    suffix: str
    source: str
    replaced: Mapping[str, str] = field(default_factory=dict)

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
                made_by=k.made_by,
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


def bucket_key(backend: Backend, regions: Mapping[str, Node], context: Context, stages: Stages = NO_STAGES) -> CacheKey:
    """What decides the library of a bucket."""
    replaced: dict[str, JSON] = {"replaced": stages.digests} if stages.files else {}
    # The bucket says how many tokens a step has; of the limit, only what it means for rows counts.
    limits = {**key_fields(context.limits, ignore=frozenset({"max_tokens"})), "rows": context.limits.bound("R")}
    return keyed(
        regions=list(regions),
        bucket=key_fields(context.bucket),
        limits=limits,
        target=context.target.record(),
        backend=backend.name,
        **backend.key(regions, context),
        **replaced,
    )


def refusal(backend: Backend, region: Node, context: Context) -> str | None:
    """Why a backend has no kernel for a region, or None if it has one."""
    try:
        backend.lower({region_digest(region): region}, context)
    except CodegenError as error:
        return str(error)
    return None


def lower_bucket(backend: Backend, regions: Mapping[str, Node], context: Context) -> LoweredBucket:
    """The kernels of a bucket, those of other distributions that override the backend's among them.

    Raises `CodegenError` with all regions that the backend has no kernels for, or naming an override that fails.
    """
    try:
        lowered = backend.lower(regions, context)
    except CodegenError:
        refused = [
            f"{reason}; {region.operands[0].type if region.operands else 'nothing'} to "
            f"{', '.join(map(str, region.types))} in {region.loc.module or 'the model'}"
            for region in regions.values()
            if (reason := refusal(backend, region, context)) is not None
        ]
        if len(refused) < 2:
            raise
        raise CodegenError(
            f"{context.target.name}: the {backend.name} backend has kernels for {len(regions) - len(refused)} of "
            f"{len(regions)} distinct regions of this model, and none yet for the others",
            details=tuple(refused),
        ) from None
    return override_kernels(lowered, backend, regions, context)


def build_buckets(
    backend: Backend,
    regions: Iterable[Node],
    contexts: Sequence[Context],
    cache: CompileCache,
    jobs: int = 1,
    progress: Progress | None = None,
    stages: Mapping[str, Stages] | None = None,
) -> list[BuiltBucket]:
    """The libraries of all buckets, from the cache where they are stored, else built in up to `jobs` processes.

    stages: what replaces generated stages, by bucket; it is part of the bucket's key then.

    Raises `CodegenError` for regions without kernels or a failed build, `CacheError` if a result cannot be stored.
    """
    unique, stages = distinct(regions), stages or {}
    found: dict[Bucket, BuiltBucket] = {}
    missing: list[tuple[Context, CacheKey]] = []
    for context in contexts:
        own = stages.get(context.bucket.name, NO_STAGES)
        key = bucket_key(backend, unique, context, own)
        entry = cache.get(KIND, key)
        if isinstance(entry, Entry):
            meta = msgspec.json.decode(entry.files[KERNELS], type=BucketMeta)
            library, text = entry.files[LIBRARY + backend.suffix], entry.files[SOURCE].decode()
            found[context.bucket] = BuiltBucket(context.bucket, meta, library, backend.suffix, text, own.digests)
        else:
            missing.append((context, key))
    done = len(found)
    if progress is not None:
        progress(done, len(contexts))
    if missing:
        cache.require_writable()

        def step(finished: int, total: int) -> None:
            if progress is not None:
                progress(done + finished, len(contexts))

        start = time.perf_counter()
        made = _make(backend, unique, [context for context, _ in missing], stages, jobs, step)
        spent = seconds(time.perf_counter() - start)
        log.info("%s: %s of %d regions built in %s", backend.name, count(len(made), "bucket"), len(unique), spent)
        for (_, key), one in zip(missing, made, strict=True):
            log.debug("bucket %s: %d kernels, %d bytes", one.bucket.name, len(one.meta.kernels), len(one.library))
            meta_text = msgspec.json.encode(one.meta)
            files = {LIBRARY + backend.suffix: one.library, SOURCE: one.source.encode(), KERNELS: meta_text}
            cache.put(KIND, key, files)
            found[one.bucket] = one
    return [found[c.bucket] for c in contexts]


def _make(
    backend: Backend,
    regions: Mapping[str, Node],
    wanted: Sequence[Context],
    stages: Mapping[str, Stages],
    jobs: int,
    progress: Progress,
) -> list[BuiltBucket]:
    """Lower and build buckets."""
    made: list[BuiltBucket] = []
    work: list[BuildJob] = []
    for context in wanted:
        own, bucket = stages.get(context.bucket.name, NO_STAGES), context.bucket
        lowered = own.kernels(lower_bucket(backend, regions, context), backend.suffix)
        text = own.text(SOURCE) or backend.module(lowered.kernels)
        library = own.files.get(LIBRARY + backend.suffix, b"")
        made.append(BuiltBucket(bucket, lowered.meta, library, backend.suffix, text, own.digests))
        if not library:
            work.append(BuildJob(bucket.name, text, context.target, lowered.meta.kernels))
    built = dict(zip((job.name for job in work), backend.build(work, jobs, progress), strict=True)) if work else {}
    return [b if b.library else replace(b, library=built[b.bucket.name]) for b in made]


def dump_stages(
    folder: Path,
    backend: Backend,
    regions: Iterable[Node],
    contexts: Sequence[Context],
    built: Sequence[BuiltBucket],
    stages: Mapping[str, Stages],
) -> None:
    """Write every stage of every bucket: `BUCKET/KERNEL.py`, `BUCKET/module.py` and the library."""
    unique = distinct(regions)
    for context, one in zip(contexts, built, strict=True):
        own = stages.get(one.bucket.name, NO_STAGES)
        lowered = own.kernels(lower_bucket(backend, unique, context), backend.suffix)
        place = folder / one.bucket.name
        place.mkdir(parents=True, exist_ok=True)
        for kernel in lowered.kernels:
            (place / f"{kernel.name}.py").write_text(kernel.source, encoding="utf-8")
        (place / SOURCE).write_text(one.source, encoding="utf-8")
        (place / (LIBRARY + backend.suffix)).write_bytes(one.library)
