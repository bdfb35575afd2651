"""What `inferir compile` tells at the end: seconds per phase, what the cache had, sizes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferir.cli.console import plain, show, table
from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache, Entry, Miss
from inferir.inspect.inspect_artifact import artifact_bytes, decision_rows, replaced_stages
from inferir.inspect.memory_table import memory_json, memory_rows
from inferir.ir.system.quantities import count, seconds, size

if TYPE_CHECKING:
    from inferir.compile.compiler import CompileReport
    from inferir.compile.tuning_use import TuningUse

NAMES = {"graph": "captured graph", "tokenizer": "tokenizer", "bucket": "kernel library"}
_PHASE_OF = {"graph": "trace", "tokenizer": "trace", "bucket": "kernels"}


class RecordingCache(CompileCache):
    """A compile cache that counts hits and misses by kind and keeps the reason of the first miss of each kind.

    A later miss may be compared with what the same compile stored a moment ago, which explains nothing.
    """

    def __init__(self, root: Path | None, readonly: bool = False) -> None:
        super().__init__(root, readonly)
        self.hit_kinds: Counter[str] = Counter()
        self.miss_kinds: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}

    def get(self, kind: str, key: CacheKey) -> Entry | Miss:
        found = super().get(kind, key)
        if isinstance(found, Entry):
            self.hit_kinds[kind] += 1
        else:
            self.miss_kinds[kind] += 1
            self.reasons.setdefault(kind, found.reason)
        return found

    @property
    def kinds(self) -> list[str]:
        """Kinds asked for, in the order of the pipeline."""
        asked = self.hit_kinds.keys() | self.miss_kinds.keys()
        return [k for k in NAMES if k in asked] + sorted(asked - NAMES.keys())


def as_json(report: CompileReport, cache: RecordingCache) -> dict[str, Any]:
    manifest = report.manifest
    assert manifest is not None
    return {
        "artifact": str(report.path),
        "digest": manifest.digest,
        "bytes": artifact_bytes(report.path, manifest),
        "model": {"name": manifest.model.name, "architecture": manifest.model.architecture},
        "dtype": manifest.model.dtype.value,
        "eos_token_ids": list(manifest.model.eos_token_ids),
        "decisions": msgspec.to_builtins(manifest.model.decisions),
        "target": manifest.target.name,
        "buckets": [b.name for b in manifest.buckets],
        "seconds": {**report.seconds, "total": report.total_seconds},
        "cache": {
            "hits": cache.hits,
            "misses": cache.misses,
            "kinds": {
                k: {"hits": cache.hit_kinds[k], "misses": cache.miss_kinds[k], "reason": cache.reasons.get(k)}
                for k in cache.kinds
            },
        },
        "tuning": _tuning_json(report.tuning),
        "memory": memory_json(manifest),
    }


def print_report(report: CompileReport, cache: RecordingCache) -> None:
    manifest = report.manifest
    assert manifest is not None
    nbytes = size(artifact_bytes(report.path, manifest))
    found: dict[str, str] = {}
    for kind in cache.kinds:
        phase = _PHASE_OF.get(kind, "")
        found[phase] = ", ".join(filter(None, (found.get(phase), _found(cache, kind))))
    phases = [(name, seconds(spent), found.get(name, "")) for name, spent in report.seconds.items()]
    phases.append(("total", seconds(report.total_seconds), ""))
    show(
        table("Compile", ("phase", "time", "from the cache"), phases, right=("time",)),
        plain(cache_line(cache)),
        *([plain(tuning_line(report.tuning))] if report.tuning else []),
        *([plain(f"Replaced by hand: {replaced}.")] if (replaced := replaced_stages(manifest)) else []),
        table("What decided", ("what", "value", "found in"), decision_rows(manifest.model.decisions)),
        table("Memory when served", ("what", "size", "note"), memory_rows(manifest), right=("size",)),
        plain(
            f"{report.path}: {nbytes}, {manifest.model.name} as {manifest.model.dtype.value} for "
            f"{manifest.target.name}, {count(len(manifest.buckets), 'bucket')}; try: inferir run {report.path}"
        ),
    )


def cache_line(cache: RecordingCache) -> str:
    """Whether the cache was hit, and for misses which component differed."""
    if not cache.misses:
        return f"Compile cache: hit, everything came from it ({count(cache.hits, 'entry')})."
    lines = [f"Compile cache: {cache.hits:,} hits, {cache.misses:,} misses."]
    for kind in cache.kinds:
        if kind in cache.reasons:
            lines.append(f"  {count(cache.miss_kinds[kind], NAMES.get(kind, kind))}: {cache.reasons[kind]}")
    return "\n".join(lines)


def tuning_line(use: TuningUse) -> str:
    """How many records of a file were used, and why the others were not."""
    line = f"Tuning: {count(len(use.choices), 'tile')} of {use.path} used"
    if use.held:
        line += f"; for {count(use.held, 'product')} the default is the best"
    reasons = ", ".join(f"{n:,} {why}" for why, n in use.ignored.items())
    return f"{line}; {count(sum(use.ignored.values()), 'record')} ignored: {reasons}." if reasons else f"{line}."


def _tuning_json(use: TuningUse | None) -> dict[str, Any] | None:
    if use is None:
        return None
    return {"records": str(use.path), "tuned": len(use.choices), "held": use.held, "ignored": dict(use.ignored)}


def _found(cache: RecordingCache, kind: str) -> str:
    asked = cache.hit_kinds[kind] + cache.miss_kinds[kind]
    return f"{cache.hit_kinds[kind]} of {count(asked, NAMES.get(kind, 'entry'))}"
