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
from inferir.verify.thresholds import Thresholds

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
    """A greedy generation. matched: leading ids that are eager's; gap: eager's margin at the first other one; tie: the
    margin below which that is excused; prompt, ours, theirs: token ids."""

    prompt_tokens: int
    tokens: int
    matched: int
    gap: float | None = None
    tie: float = TIE
    prompt: tuple[int, ...] = ()
    ours: tuple[int, ...] = ()
    theirs: tuple[int, ...] = ()

    @property
    def same(self) -> bool:
        return self.matched == self.tokens

    @property
    def excused(self) -> bool:
        return not self.same and self.gap is not None and self.gap < self.tie


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
    """One thing that had to hold. `detail` says what was measured, and against what bound.

    measured, bound: the same as numbers, where there is one of each; source: the file that set the bound, "" if it is
    built in; buckets: those in which it does not hold, where that can be told.
    """

    name: str
    passed: bool
    detail: str
    measured: float | None = None
    bound: float | None = None
    source: str = ""
    buckets: tuple[str, ...] = ()


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
    """Rows, and for every position once the KL divergence of the artifact and, if it is bf16, of eager in bfloat16.
    sequences: all distances of the artifact, position by position; None if they are not wanted.
    """

    rows: list[Row]
    kl: npt.NDArray[np.float64]
    eager_kl: npt.NDArray[np.float64] | None = None
    sequences: list[Distances] | None = None

    def kept(self) -> npt.NDArray[np.bool_]:
        """The positions whose KL divergence is held against a bound: not those where eager in bfloat16 goes astray."""
        if self.eager_kl is None:
            return np.ones(len(self.kl), np.bool_)
        kept: npt.NDArray[np.bool_] = self.eager_kl <= STRAY * np.median(self.eager_kl)
        return kept

    def mean_kl(self) -> float:
        """Mean KL divergence over the kept positions, in nats."""
        return float(self.kl[self.kept()].mean())


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
    return Measured(out, every, None if eager is None else np.concatenate(eager), ours)


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
    measured: Measured,
    greedy: list[Greedy],
    seen: Observed,
    manifest: Manifest,
    bound: float,
    far: list[Far],
    thresholds: Thresholds = Thresholds(),  # noqa: B008  # frozen
) -> list[Check]:
    """Hold what was measured against the bounds. bound, far: what `beyond` was asked and found, for an f32 artifact."""
    checks = []
    if manifest.model.dtype is DType.F32:
        source = thresholds.origin("max_abs") or thresholds.origin("max_abs_rms")
        checks.append(_check_logits(measured.rows, bound, far, source))
        checks.append(check_greedy(greedy, thresholds))
    else:
        checks.append(_check_kl(measured, thresholds))
    checks.append(_check_invariance(seen))
    missed = tuple(b.name for b in manifest.buckets if b.name not in {r.bucket for r in measured.rows})
    count = len(manifest.buckets)
    text = f"not run: {', '.join(missed)}" if missed else f"all {count} buckets ran" if count > 1 else "the bucket ran"
    checks.append(Check("coverage", not missed, text, buckets=missed))
    return checks


def _check_logits(rows: list[Row], bound: float, far: list[Far], source: str) -> Check:
    worst = max(rows, key=lambda r: r.max_abs)
    text = f"largest difference {worst.max_abs:.2e} ({worst.bucket} {worst.kind}), bound {bound:.2e}{of(source)}"
    excused = sum(f.excused for f in far)
    if excused:
        text += f"; {len(far)} beyond it, {excused} excused because rounding alone moves eager's logits there"
    passed = excused == len(far)
    return Check("logits", passed, text, worst.max_abs, bound, source, () if passed else buckets_beyond(rows, bound))


def buckets_beyond(rows: list[Row], bound: float) -> tuple[str, ...]:
    """Buckets with a logit that differs by more than `bound`, or by what is no number."""
    return tuple(dict.fromkeys(r.bucket for r in rows if not r.max_abs <= bound))


def of(source: str) -> str:
    """What follows a bound in a check's text: the file that set it."""
    return f" (from {source})" if source else ""


def check_greedy(greedy: list[Greedy], thresholds: Thresholds) -> Check:
    """Whether enough generations have eager's ids, or leave them at a tie: all, unless a threshold says otherwise."""
    least, source = thresholds.greedy_ids, thresholds.origin("greedy_ids")
    bound = 1.0 if least is None else least
    same, excused = sum(g.same for g in greedy), sum(g.excused for g in greedy)
    text = f"{same} of {len(greedy)} generations have eager's ids"
    if excused:
        tie = max(g.tie for g in greedy)
        text += f", {excused} differ where eager's two best logits are closer than {tie:g}"
    share = (same + excused) / len(greedy) if greedy else 1.0
    if source:
        text += f"; at least {bound:.1%} must{of(source)}"
    return Check("greedy ids", share >= bound, text, share, bound, source)


def _check_invariance(seen: Observed) -> Check:
    text = "same bits in all steps"
    if seen.changed:
        bucket, kind, sequence, position = next(iter(seen.changed))
        text = f"{len(seen.changed)} positions have other bits in other steps; the first is "
        text += f"position {position} of sequence {sequence} in {bucket} {kind} steps"
    return Check("batch invariance", not seen.changed, text, buckets=tuple(dict.fromkeys(k[0] for k in seen.changed)))


def _check_kl(measured: Measured, thresholds: Thresholds) -> Check:
    assert measured.eager_kl is not None
    source = thresholds.origin("kl_ratio")
    ratio = KL_MARGIN if thresholds.kl_ratio is None else thresholds.kl_ratio
    kept = measured.kept()
    have, own = measured.mean_kl(), float(measured.eager_kl[kept].mean())
    most = ratio * own
    text = f"mean KL {have:.3e}, eager bf16 {own:.3e}, bound {most:.3e}{of(source)}, over {kept.sum():,} positions"
    if not kept.all():
        text += f"; {(~kept).sum():,} left out, where eager bf16 is over {STRAY:g} times its median"
    passed = have <= most
    beyond_ = [r.bucket for r in measured.rows if r.eager_kl is not None and not r.kl <= ratio * r.eager_kl]
    return Check("KL", passed, text, have, most, source, () if passed else tuple(dict.fromkeys(beyond_)))
