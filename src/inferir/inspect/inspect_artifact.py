"""What is in an artifact, as plain records: for tables, JSON and the HTML page. Loads no kernel and no weight."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from inferir.ir.contract.artifact import MANIFEST, read_manifest, verify_files
from inferir.ir.contract.kv_groups import KVUse, sequence_use
from inferir.ir.contract.manifest import BucketRecord, Decision, Manifest
from inferir.ir.errors import ArtifactError
from inferir.ir.system.quantities import size

GRAPHS = {"captured": "ir/captured.txt", "kernels": "ir/kernels.txt"}
_REFUSALS = "ir/refusals.txt"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class KernelUse:
    """A kernel with one tile: `buckets` have it so, and call it `calls_per_step` times. `provenance`: module paths;
    `made_by`: the override of another distribution that its text comes from.
    """

    name: str
    region: str
    anchor: str
    calls_per_step: int
    tile: dict[str, int]
    buckets: tuple[str, ...]
    provenance: tuple[str, ...]
    made_by: str = ""

    @property
    def title(self) -> str:
        """Its name, and whose it is if not ours."""
        return f"{self.name} (by {self.made_by})" if self.made_by else self.name

    @property
    def tile_text(self) -> str:
        return ", ".join(k if k == "tuned" else f"{k} {v}" for k, v in self.tile.items())


@dataclass(frozen=True)
class ArtifactView:
    """An artifact whose manifest has been checked; its other files are checked when they are read."""

    path: Path
    manifest: Manifest
    kernels: tuple[KernelUse, ...] = field(repr=False)

    @property
    def nbytes(self) -> int:
        return artifact_bytes(self.path, self.manifest)

    def graph_text(self, which: str) -> str:
        """IR text of the graph `which`, a key of `GRAPHS`. Raises `ArtifactError` if it is missing or damaged."""
        return self._read(GRAPHS[which])

    def refusals(self) -> list[str]:
        """Rewrites that passes considered and did not do, and why."""
        return self._read(_REFUSALS).splitlines() if _REFUSALS in self.manifest.files else []

    def _read(self, name: str) -> str:
        if name not in self.manifest.files:
            raise ArtifactError(f"{self.path / name}: not part of the artifact")
        verify_files(self.path, self.manifest, names=[name])
        return (self.path / name).read_text(encoding="utf-8")


def view_artifact(path: str | os.PathLike[str]) -> ArtifactView:
    """Read the artifact folder `path`. Raises `ArtifactError` if its manifest is missing or damaged."""
    manifest = read_manifest(path)
    return ArtifactView(Path(path), manifest, tuple(_kernel_uses(manifest.buckets)))


def artifact_bytes(path: Path, manifest: Manifest) -> int:
    """Size of the whole artifact at `path`."""
    return sum(f.bytes for f in manifest.files.values()) + (path / MANIFEST).stat().st_size


def _kernel_uses(buckets: Iterable[BucketRecord]) -> list[KernelUse]:
    """Kernels in dispatch order; buckets in which a kernel has the same tile share a record."""
    uses: dict[tuple[Any, ...], KernelUse] = {}
    for bucket in buckets:
        calls = Counter(call.kernel for call in bucket.program)
        for k in bucket.kernels:
            key = (k.id, k.name, k.region, calls[k.id], tuple(k.tile.items()), k.made_by)
            names = (*uses[key].buckets, bucket.name) if key in uses else (bucket.name,)
            uses[key] = KernelUse(k.name, k.region, k.anchor, calls[k.id], k.tile, names, k.provenance, k.made_by)
    return [uses[key] for key in sorted(uses, key=lambda k: k[0])]


def buckets_text(view: ArtifactView, kernel: KernelUse) -> str:
    """The names of the kernel's buckets, or "all"."""
    return "all" if len(kernel.buckets) == len(view.manifest.buckets) else " ".join(kernel.buckets)


def short_provenance(paths: Iterable[str]) -> str:
    """Module paths for people: those that differ only in a layer number become one, with the number of layers."""
    merged = Counter(_NUMBER.sub("*", p) for p in paths)
    return ", ".join(f"{p} ({n})" if n > 1 else p for p, n in merged.items())


def summary(view: ArtifactView) -> list[tuple[str, str]]:
    """Rows (what, value) that describe the artifact as a whole."""
    m = view.manifest
    features = ", ".join(m.target.features)
    return [
        ("model", f"{m.model.name} ({m.model.architecture})"),
        ("parameters", f"{m.model.parameters:,} as {m.model.dtype.value}"),
        ("layers, hidden, vocabulary", f"{m.model.num_layers}, {m.model.hidden_size:,}, {m.model.vocab_size:,}"),
        ("target", f"{m.target.name} ({features})" if features else m.target.name),
        (
            "options",
            ", ".join(f"{k}={_value(v)}" for k, v in m.options.items() if v not in (None, [], ())) or "defaults",
        ),
        ("step limits", f"{m.limits.max_tokens:,} tokens, {m.limits.max_seqs:,} sequences"),
        (
            "sequence limit",
            f"{m.limits.max_model_len:,} tokens, {m.limits.bound('MB'):,} blocks of {m.limits.block_size}",
        ),
        ("tool calls", m.model.tool_style or "none, or in a style that is not known"),
        ("KV cache", "; ".join(_use_text(u) for u in sequence_use(m.kv, m.limits.max_model_len)) or "none"),
        ("made by", ", ".join(f"{k} {v}" for k, v in m.versions.items())),
        *([("replaced by hand", replaced_stages(m))] if replaced_stages(m) else []),
        ("format, digest", f"{m.format}, {m.digest[:16]}…"),
    ]


def replaced_stages(manifest: Manifest) -> str:
    """Stages of code generation that came from files."""
    return ", ".join(f"{b.name}/{name}" for b in manifest.buckets for name in b.replaced)


def decision_rows(decisions: Iterable[Decision]) -> list[tuple[str, str, str]]:
    """Rows (what, value, where it was found); what the rows above say already is not said again."""
    rows: list[tuple[str, str, str]] = []
    before = None
    for d in decisions:
        rows.append(("" if d.subject == before else d.subject, d.value, d.source))
        before = d.subject
    return rows


def plugin_rows(manifest: Manifest) -> list[tuple[str, str, str, str, str]]:
    """Rows (kind, name, distribution and version, when it is needed, what it did) of the plug-ins that took part."""
    return [
        (p.kind, p.name, f"{p.distribution} {p.version}", "to serve, too" if p.serves else "to compile", p.detail)
        for p in manifest.plugins
    ]


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _use_text(use: KVUse) -> str:
    groups = f" in {use.groups} groups" if use.groups > 1 else ""
    return f"{use.layers} layers{groups}, {use.spec.text}"


def bucket_rows(manifest: Manifest) -> list[tuple[str, str, str, str, str, str]]:
    """Rows (bucket, tokens, sequences, kernels, calls per step, size of the library)."""
    rows = []
    for b in manifest.buckets:
        tokens = str(b.lo) if b.hi == b.lo + 1 else f"{b.lo}-{b.hi - 1}"
        steps = "decode only" if b.decode else "any"
        rows.append(
            (b.name, tokens, steps, str(len(b.kernels)), str(len(b.program)), size(manifest.files[b.library].bytes))
        )
    return rows


def as_json(view: ArtifactView) -> dict[str, Any]:
    """Everything about the artifact but step programs and tensor offsets, as JSON values."""
    m = view.manifest
    return {
        "artifact": str(view.path),
        "bytes": view.nbytes,
        "digest": m.digest,
        "format": m.format,
        "model": msgspec.to_builtins(m.model),
        "target": m.target.record(),
        "limits": msgspec.to_builtins(m.limits),
        "memory": msgspec.to_builtins(m.memory),
        "kv": msgspec.to_builtins(m.kv),
        "options": m.options,
        "versions": m.versions,
        "plugins": [msgspec.to_builtins(p) for p in m.plugins],
        "buckets": [
            {
                "name": b.name,
                "tokens": [b.lo, b.hi - 1],
                "decode": b.decode,
                "library": b.library,
                "library_bytes": m.files[b.library].bytes,
                "attn_tile": b.attn_tile,
                "scratch_bytes": b.scratch_bytes,
                "calls": len(b.program),
                "replaced": b.replaced,
            }
            for b in m.buckets
        ],
        "kernels": [asdict(k) for k in view.kernels],
        "weights": {
            n: {"dtype": t.dtype.value, "shape": list(t.shape), "bytes": t.nbytes} for n, t in m.weights.items()
        },
        "files": {n: {"bytes": f.bytes, "blake3": f.blake3} for n, f in m.files.items()},
        "refusals": view.refusals(),
    }
