"""What a verification measures, and the bounds that it has to hold.

f32    no logit differs by more than LOGIT_BOUND times the RMS of eager's logits (at least 1), and greedy ids are
       the same; an id may differ only where eager's own two best logits are closer than TIE
bf16   the mean KL divergence from eager in float32 is at most KL_MARGIN times that of eager in bfloat16
both   a position has the same bits in whichever steps it is computed, and every bucket was run
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inferir.ir.artifact import Manifest
from inferir.ir.dtypes import DType
from inferir.verify_cases import Part
from inferir.verify_metrics import Distances, Rows, distances

LOGIT_BOUND = 2e-4
TIE = 1e-4
KL_MARGIN = 1.05


@dataclass(frozen=True)
class Row:
    """How one bucket did in steps of one kind, over `positions`. kl: mean, from eager in float32; eager_kl: eager in
    bfloat16's own, for a bf16 artifact."""

    bucket: str
    kind: str
    positions: int
    max_abs: float
    mean_abs: float
    kl: float
    top1: float
    eager_kl: float | None = None


@dataclass(frozen=True)
class Greedy:
    """A greedy generation. matched: leading ids that are eager's; gap: eager's margin at the first other one."""

    prompt_tokens: int
    tokens: int
    matched: int
    gap: float | None = None

    @property
    def same(self) -> bool:
        return self.matched == self.tokens

    @property
    def excused(self) -> bool:
        return not self.same and self.gap is not None and self.gap < TIE


@dataclass(frozen=True)
class Check:
    """One thing that had to hold. `detail` says what was measured, and against what bound."""

    name: str
    passed: bool
    detail: str


@dataclass
class Observed:
    """What the engine computed. Logits of a position are kept once; `changed` holds those that came out differently."""

    sequences: list[list[int]]
    logits: list[Rows]
    parts: list[Part] = field(default_factory=list)
    changed: dict[tuple[str, str, int, int], Rows] = field(default_factory=dict)
    prompts: list[list[int]] = field(default_factory=list)
    generated: list[list[int]] = field(default_factory=list)


def measure(seen: Observed, reference: list[Rows], own: list[Rows] | None) -> list[Row]:
    """One row per bucket and kind of step. own: eager logits in the artifact's type, for a bf16 artifact."""
    ours = [distances(r, x) for r, x in zip(reference, seen.logits, strict=True)]
    eager = None if own is None else [distances(r, x).kl for r, x in zip(reference, own, strict=True)]
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in seen.parts:
        groups.setdefault((part.bucket, part.kind), []).append(part)
    out = []
    for (bucket, kind), parts in groups.items():
        where = sorted({(p.sequence, i) for p in parts for i in range(p.start, p.start + p.count)})
        values = _gather(ours, where)
        for number, (sequence, position) in enumerate(where):
            other = seen.changed.get((bucket, kind, sequence, position))
            if other is not None:
                d = distances(reference[sequence][position : position + 1], other[None])
                values[:, number] = (d.max_abs[0], d.mean_abs[0], d.kl[0], float(d.top1[0]))
        eager_kl = None if eager is None else float(np.mean([eager[s][i] for s, i in where]))
        means = values.mean(axis=1)
        largest = float(values[0].max())
        out.append(Row(bucket, kind, len(where), largest, float(means[1]), float(means[2]), float(means[3]), eager_kl))
    return out


def _gather(found: list[Distances], where: list[tuple[int, int]]) -> npt.NDArray[np.float64]:
    """[4, positions]: max_abs, mean_abs, kl, top1."""
    fields = ("max_abs", "mean_abs", "kl", "top1")
    return np.array([[float(getattr(found[s], f)[i]) for s, i in where] for f in fields])


def scale_of(reference: list[Rows]) -> float:
    """RMS of eager's logits, at least 1."""
    total = sum(float(np.square(r, dtype=np.float64).sum()) for r in reference)
    return max(1.0, math.sqrt(total / sum(r.size for r in reference)))


def check_all(rows: list[Row], greedy: list[Greedy], seen: Observed, manifest: Manifest, scale: float) -> list[Check]:
    """Hold what was measured against the bounds. scale: what an f32 artifact's bound is a multiple of."""
    checks = []
    if manifest.model.dtype is DType.F32:
        worst = max(rows, key=lambda r: r.max_abs)
        bound = LOGIT_BOUND * scale
        text = f"largest difference {worst.max_abs:.2e} ({worst.bucket} {worst.kind}), bound {bound:.2e}"
        checks.append(Check("logits", worst.max_abs <= bound, text))
        same, excused = sum(g.same for g in greedy), sum(g.excused for g in greedy)
        text = f"{same} of {len(greedy)} generations have eager's ids"
        if excused:
            text += f", {excused} differ where eager's two best logits are closer than {TIE}"
        checks.append(Check("greedy ids", same + excused == len(greedy), text))
    else:
        count = sum(r.positions for r in rows)
        ours = sum(r.kl * r.positions for r in rows) / count
        eager = sum((r.eager_kl or 0.0) * r.positions for r in rows) / count
        text = f"mean KL {ours:.3e}, eager {manifest.model.dtype.value} {eager:.3e}, bound {KL_MARGIN * eager:.3e}"
        checks.append(Check("KL", ours <= KL_MARGIN * eager, text))
    first = next(iter(seen.changed), None)
    where = (
        ""
        if first is None
        else f"; the first is position {first[3]} of sequence {first[2]} in {first[0]} {first[1]} steps"
    )
    text = f"{len(seen.changed)} positions have other bits in other steps{where}"
    checks.append(Check("batch invariance", not seen.changed, text if seen.changed else "same bits in all steps"))
    missed = [b.name for b in manifest.buckets if b.name not in {r.bucket for r in rows}]
    text = f"not run: {', '.join(missed)}" if missed else f"all {len(manifest.buckets)} buckets ran"
    checks.append(Check("coverage", not missed, text))
    return checks
