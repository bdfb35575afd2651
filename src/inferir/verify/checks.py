"""What a verification measures, and the bounds that it has to hold.

f32    no logit differs by more than LOGIT_BOUND times the RMS of eager's logits (at least 1), except at positions
       where rounding alone moves eager's logits (float64 against float32) by at least 1/ROUNDING of that much;
       greedy ids are the same, except where eager's own two best logits are closer than TIE
bf16   the mean KL divergence from eager in float32 is at most KL_MARGIN times that of eager in bfloat16, over all
       positions but those where eager in bfloat16 itself is more than STRAY times its own median away
both   a position has the same bits in whichever steps it is computed, and every bucket was run
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.manifest import Manifest
from inferir.ir.graph.dtypes import DType
from inferir.verify.cases import Part
from inferir.verify.divergence import Distances, Rows, distances

LOGIT_BOUND = 2e-4
TIE = 1e-4
ROUNDING = 8.0
KL_MARGIN = 1.05
STRAY = 30.0


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
class Far:
    """A position whose logits differ by `distance`, more than the bound. rounding: how far eager in float64 is from
    eager in float32 there, None if that was not computed."""

    sequence: int
    position: int
    distance: float
    rounding: float | None = None

    @property
    def excused(self) -> bool:
        return self.rounding is not None and self.distance <= ROUNDING * self.rounding


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


@dataclass(frozen=True)
class Measured:
    """Rows, and for every position once the KL divergence of the artifact and, if it is bf16, of eager in bfloat16."""

    rows: list[Row]
    kl: npt.NDArray[np.float64]
    eager_kl: npt.NDArray[np.float64] | None = None


def measure(seen: Observed, reference: list[Rows], own: list[Rows] | None) -> Measured:
    """Distances per bucket and kind of step. own: eager logits in the artifact's type, for a bf16 artifact."""
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
                values[:, number] = np.ravel(distances(reference[sequence][position : position + 1], other[None]))
        eager_kl = None if eager is None else float(np.mean([eager[s][i] for s, i in where]))
        means = values.mean(axis=1)
        largest = float(values[0].max())
        out.append(Row(bucket, kind, len(where), largest, float(means[1]), float(means[2]), float(means[3]), eager_kl))
    every = np.concatenate([d.kl for d in ours])
    return Measured(out, every, None if eager is None else np.concatenate(eager))


def _gather(found: list[Distances], where: list[tuple[int, int]]) -> npt.NDArray[np.float64]:
    """[4, positions]: max_abs, mean_abs, kl, top1."""
    return np.array([[float(values[i]) for values in found[s]] for s, i in where]).T


def beyond(seen: Observed, reference: list[Rows], bound: float) -> list[Far]:
    """Positions beyond the bound, the farthest first."""
    found = []
    for sequence, (want, have) in enumerate(zip(reference, seen.logits, strict=True)):
        for position in np.flatnonzero(distances(want, have).max_abs > bound).tolist():
            distance = distances(want[position : position + 1], have[position : position + 1]).max_abs[0]
            found.append(Far(sequence, position, float(distance)))
    for (_, _, sequence, position), row in seen.changed.items():
        distance = distances(reference[sequence][position : position + 1], row[None]).max_abs[0]
        if distance > bound:
            found.append(Far(sequence, position, float(distance)))
    return sorted(found, key=lambda far: -far.distance)


def scale_of(reference: list[Rows]) -> float:
    """RMS of eager's logits, at least 1."""
    total = sum(float(np.square(r, dtype=np.float64).sum()) for r in reference)
    return max(1.0, math.sqrt(total / sum(r.size for r in reference)))


def check_all(
    measured: Measured, greedy: list[Greedy], seen: Observed, manifest: Manifest, bound: float, far: list[Far]
) -> list[Check]:
    """Hold what was measured against the bounds. bound, far: what `beyond` was asked and found, for an f32 artifact."""
    checks = []
    if manifest.model.dtype is DType.F32:
        checks.append(_check_logits(measured.rows, bound, far))
        same, excused = sum(g.same for g in greedy), sum(g.excused for g in greedy)
        text = f"{same} of {len(greedy)} generations have eager's ids"
        if excused:
            text += f", {excused} differ where eager's two best logits are closer than {TIE}"
        checks.append(Check("greedy ids", same + excused == len(greedy), text))
    else:
        assert measured.eager_kl is not None
        checks.append(_check_kl(measured.kl, measured.eager_kl))
    checks.append(_check_invariance(seen))
    missed = [b.name for b in manifest.buckets if b.name not in {r.bucket for r in measured.rows}]
    text = f"not run: {', '.join(missed)}" if missed else f"all {len(manifest.buckets)} buckets ran"
    checks.append(Check("coverage", not missed, text))
    return checks


def _check_logits(rows: list[Row], bound: float, far: list[Far]) -> Check:
    worst = max(rows, key=lambda r: r.max_abs)
    text = f"largest difference {worst.max_abs:.2e} ({worst.bucket} {worst.kind}), bound {bound:.2e}"
    excused = sum(f.excused for f in far)
    if excused:
        text += f"; {len(far)} beyond it, {excused} excused because rounding alone moves eager's logits there"
    return Check("logits", excused == len(far), text)


def _check_invariance(seen: Observed) -> Check:
    text = "same bits in all steps"
    if seen.changed:
        bucket, kind, sequence, position = next(iter(seen.changed))
        text = f"{len(seen.changed)} positions have other bits in other steps; the first is "
        text += f"position {position} of sequence {sequence} in {bucket} {kind} steps"
    return Check("batch invariance", not seen.changed, text)


def _check_kl(ours: npt.NDArray[np.float64], eager: npt.NDArray[np.float64]) -> Check:
    kept = eager <= STRAY * np.median(eager)
    have, most = float(ours[kept].mean()), KL_MARGIN * float(eager[kept].mean())
    text = f"mean KL {have:.3e}, eager bf16 {most / KL_MARGIN:.3e}, bound {most:.3e}, over {kept.sum():,} positions"
    if not kept.all():
        text += f"; {(~kept).sum():,} left out, where eager bf16 is over {STRAY:g} times its median"
    return Check("KL", have <= most, text)
