"""Compare an artifact with Hugging Face's own eager code on the same weights, bucket by bucket.

First the engine runs all schedules (`verify_cases`) and a greedy generation; then it is closed, and only then torch
computes the reference. `verify_checks` has the bounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.runtime.machine import thread_count
from inferir.verify.baseline import Baseline, Figures, baseline_checks
from inferir.verify.cases import Schedule, schedules, steps, token_pool
from inferir.verify.checks import (
    LOGIT_BOUND,
    TIE,
    Check,
    Far,
    Greedy,
    Measured,
    Observed,
    Row,
    beyond,
    check_all,
    measure,
    scale_of,
)
from inferir.verify.divergence import Rows, distances, top2_gap
from inferir.verify.environment import environment
from inferir.verify.speed import Speed, measure_speed, speed_threads
from inferir.verify.threshold_checks import speed_checks, threshold_checks, top1_share
from inferir.verify.thresholds import Thresholds

if TYPE_CHECKING:
    from inferir.compile.compile_types import Progress
    from inferir.verify.findings import Bisection
    from inferir.verify.layers import Layers


@dataclass
class VerifyReport:
    """What a verification found. figures: the same in a few numbers, for a baseline; texts: of the tokens that were
    generated, by id; environment: where it ran."""

    artifact: Path
    model: str
    dtype: DType
    rows: list[Row]
    greedy: list[Greedy]
    checks: list[Check]
    seconds: dict[str, float] = field(default_factory=dict)
    measured: Measured | None = None
    figures: Figures | None = None
    speed: Speed | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    baseline: Baseline | None = None
    texts: dict[int, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    layers: Layers | None = None
    bisection: Bisection | None = None

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.checks) and all(p is None or p.passed for p in (self.layers, self.bisection))


def verify_artifact(
    artifact: str | os.PathLike[str], model: str | None = None, *, quick: bool = False, threads: int | None = None,
    progress: Progress | None = None, trust_remote_code: bool = False, revision: str | None = None,
    thresholds: Thresholds | None = None, baseline: Baseline | None = None, speed: bool | None = None,
) -> VerifyReport:  # fmt: skip
    """Verify `artifact` against the model `model` (None: look for it, see `find_model`). Raises an `InferirError`.

    thresholds, baseline: what else the run is held to; speed: whether it is measured (None: if one of these needs it).
    """
    from inferir.frontend.source.model_source import load_source

    thresholds = thresholds or Thresholds()
    manifest = read_manifest(artifact)
    thresholds.check_type(manifest.model.dtype)
    if baseline is not None:
        baseline.check_same(manifest, quick, None if speed is False else speed_threads(threads))
    spec = model if model is not None else find_model(Path(artifact), manifest)
    source = load_source(spec, manifest.model.dtype, revision, trust_remote_code)
    check_model(manifest, source)
    say = progress or (lambda phase, done, total: None)
    start = time.perf_counter()
    with LLM(artifact, threads=threads) as llm:
        seen = observe(llm, quick, say)
        tokenizer = llm.engine.tokenizer
    engine_seconds = time.perf_counter() - start
    report = compare(seen, source, manifest, say, thresholds)
    report.artifact, report.model = Path(artifact), spec
    report.seconds = {"engine": engine_seconds, "reference": time.perf_counter() - start - engine_seconds}
    report.environment = environment(manifest, thread_count(threads))
    if tokenizer is not None:
        ids = {i for g in report.greedy for i in (*g.prompt, *g.ours, *g.theirs)}
        report.texts = {i: tokenizer.decode([i], skip_special_tokens=False) for i in sorted(ids)}
    needed = thresholds.need_speed or (baseline is not None and baseline.has_speed)
    if needed if speed is None else speed:
        start = time.perf_counter()
        report.speed = measure_speed(artifact, source, manifest, threads, quick, say)
        report.seconds["speed"] = time.perf_counter() - start
        report.checks += speed_checks(report.speed, thresholds)
    report.figures = figures(report, manifest, quick)
    if baseline is not None:
        report.baseline = baseline
        report.checks += baseline_checks(report.figures, baseline, thresholds.tolerance)
    return report


def figures(report: VerifyReport, manifest: Manifest, quick: bool) -> Figures:
    """The numbers of a report that later runs may be compared with."""
    measured, speed = report.measured, report.speed
    assert measured is not None
    own = None if measured.eager_kl is None else float(measured.eager_kl[measured.kept()].mean())
    return Figures(
        model=manifest.model.name,
        dtype=manifest.model.dtype.value,
        target=manifest.target.name,
        quick=quick,
        positions=len(measured.kl),
        kl=measured.mean_kl(),
        top1=top1_share(measured),
        max_abs=max(r.max_abs for r in report.rows),
        eager_kl=own,
        decode_speed=None if speed is None else speed.decode.ratio,
        prefill_speed=None if speed is None else speed.prefill.ratio,
        threads=None if speed is None else speed.threads,
    )


def find_model(artifact: Path, manifest: Manifest) -> str:
    """The model's folder or GGUF file, if it lies in the current folder or beside the artifact under its own name.

    An artifact records no path: it is meant to be moved. Raises `InferirError` that says to name the model.
    """
    name = manifest.model.name.rpartition("/")[2]
    for folder in (Path(), artifact.resolve().parent):
        for place in _named(folder, name):
            if place.is_file() or ((place / "config.json").is_file() and place.resolve() != artifact.resolve()):
                return str(place)
    raise InferirError(
        f"{artifact} records no path of its model {manifest.model.name!r}, and there is no {name!r} here or beside it; "
        "name the model it was compiled from with --model"
    )


def _named(folder: Path, name: str) -> list[Path]:
    """What in `folder` a compile would call `name`, exact names first."""
    from inferir.frontend.checkpoint.model_name import display_name

    try:
        there = sorted(folder.iterdir(), key=lambda p: (p.name != name, p.name))
    except OSError:
        return []
    return [place for place in there if name in (place.name, display_name(place).rpartition("/")[2])]


def check_model(manifest: Manifest, source: Any) -> None:
    """Refuse a model of another architecture before anything is computed."""
    architectures = tuple(getattr(source.config, "architectures", None) or ())
    known = manifest.model.architecture
    if architectures and known and known not in architectures and known != getattr(source.config, "model_type", ""):
        raise InferirError(f"{source.spec} is a {architectures[0]}; the artifact was compiled from a {known}")


def observe(llm: LLM, quick: bool, say: Progress) -> Observed:
    """Run all schedules and the greedy generation on the engine."""
    manifest = llm.manifest
    longest = min(manifest.limits.max_model_len, llm.engine.capacity) - 1
    plan = schedules(manifest.buckets, manifest.limits, longest, quick)
    seen = _pool(llm, plan)
    for number, schedule in enumerate(plan):
        say("engine", number, len(plan) + 1)
        _observe(llm, schedule, seen)
    say("engine", len(plan), len(plan) + 1)
    count = min(16 if quick else 32, longest - 2)
    seen.prompts = [s[: min(len(s), 3 + 4 * i, longest - count)] for i, s in enumerate(seen.sequences[:4])]
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    seen.generated = [o.token_ids for o in llm.generate(seen.prompts, params)]
    say("engine", len(plan) + 1, len(plan) + 1)
    return seen


def _pool(llm: LLM, plan: Sequence[Schedule]) -> Observed:
    """The sequences that the schedules need, each as long as its longest use."""
    model = llm.manifest.model
    tokenizer = llm.engine.tokenizer
    special = set(model.eos_token_ids) | (set(tokenizer.special_ids) if tokenizer is not None else set())
    vocabulary = [i for i in range(model.vocab_size) if i not in special] or list(range(model.vocab_size))
    lengths: list[int] = []
    for schedule in plan:
        for i, n in enumerate(schedule.lengths):
            lengths[i : i + 1] = [max(n, lengths[i] if i < len(lengths) else 0)]
    pool = token_pool(len(lengths), max(lengths), vocabulary, model.bos_token_id)
    sequences = [ids[:n] for ids, n in zip(pool, lengths, strict=True)]
    return Observed(sequences, [np.full((n, model.vocab_size), np.nan, np.float32) for n in lengths])


def _observe(llm: LLM, schedule: Schedule, seen: Observed) -> None:
    prompts = [seen.sequences[i][:n] for i, n in enumerate(schedule.lengths)]
    found = llm.logits(prompts, chunk=schedule.chunk)
    for parts in steps(schedule, llm.manifest.buckets):
        for part in parts:
            seen.parts.append(part)
            for position in range(part.start, part.start + part.count):
                row = found[part.sequence][position]
                kept = seen.logits[part.sequence][position]
                if np.isnan(kept).all():
                    kept[:] = row
                elif kept.tobytes() != row.tobytes():
                    seen.changed[part.bucket, part.kind, part.sequence, position] = row.copy()


def compare(
    seen: Observed, source: Any, manifest: Manifest, say: Progress, thresholds: Thresholds | None = None
) -> VerifyReport:
    """Compute the reference with torch and measure what was observed against it."""
    from inferir.frontend.capture.eager import eager_greedy, eager_model, model_logits

    dtype, vocabulary = manifest.model.dtype, manifest.model.vocab_size
    thresholds = thresholds or Thresholds()

    def logits_of(model: Any, phase: str) -> list[Rows]:
        out = []
        for number, ids in enumerate(seen.sequences):
            say(phase, number, len(seen.sequences))
            rows = model_logits(model, ids)
            if rows.shape[1] != vocabulary:
                raise InferirError(
                    f"{source.spec} has {rows.shape[1]} logits, the artifact {vocabulary}; another model?"
                )
            out.append(rows.numpy())
        say(phase, len(seen.sequences), len(seen.sequences))
        return out

    model = eager_model(source, DType.F32)
    reference = logits_of(model, "eager f32")
    own: list[Rows] | None = None
    if dtype is not DType.F32:
        del model
        model = eager_model(source, dtype)
        own = logits_of(model, f"eager {dtype.value}")
    steps_ = len(seen.generated[0])
    expected = [eager_greedy(model, prompt, steps_) for prompt in seen.prompts]
    greedy = []
    for prompt, ours, theirs in zip(seen.prompts, seen.generated, expected, strict=True):
        matched = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
        gap = None
        if matched < len(ours):
            rows = model_logits(model, [*prompt, *theirs[:matched]])
            gap = top2_gap(rows[-1].numpy())
        tie = TIE if thresholds.tie is None else thresholds.tie
        ids = tuple(prompt), tuple(ours), tuple(theirs)
        greedy.append(Greedy(len(prompt), len(ours), matched, gap, tie, *ids))
    bound, far = logit_bound(reference, thresholds), []
    if dtype is DType.F32:
        far = beyond(seen, reference, bound)
        if thresholds.max_abs is None and thresholds.max_abs_rms is None:  # a bound of the user's own has no excuse
            far = judge(far, seen, reference, lambda ids: double_logits(model, ids))
    measured = measure(seen, reference, own)
    checks = check_all(measured, greedy, seen, manifest, bound, far, thresholds)
    checks += threshold_checks(measured, greedy, dtype, bound, thresholds)
    report = VerifyReport(Path(), source.spec, dtype, measured.rows, greedy, checks, measured=measured)
    report.thresholds = thresholds
    return report


def logit_bound(reference: list[Rows], thresholds: Thresholds) -> float:
    """What a logit may differ by, in its units."""
    if thresholds.max_abs is not None:
        return thresholds.max_abs
    ratio = LOGIT_BOUND if thresholds.max_abs_rms is None else thresholds.max_abs_rms
    return ratio * scale_of(reference)


def judge(far: list[Far], seen: Observed, reference: list[Rows], precise: Callable[[list[int]], Rows]) -> list[Far]:
    """`far` with the rounding of eager's own logits, from `precise`, up to the first position that has no excuse."""
    rounding: dict[int, Any] = {}
    out = []
    for number, place in enumerate(far):
        if place.sequence not in rounding:
            ids = seen.sequences[place.sequence]
            rounding[place.sequence] = distances(reference[place.sequence], precise(ids)).max_abs
        found = replace(place, rounding=float(rounding[place.sequence][place.position]))
        out.append(found)
        if not found.excused:
            return out + far[number + 1 :]
    return out


def double_logits(model: Any, ids: list[int]) -> Rows:
    """Logits [len(ids), V] of a torch model computed in float64; the model is in float64 afterwards."""
    from inferir.frontend.capture.eager import model_logits

    logits: Rows = model_logits(model.double(), ids).numpy()
    return logits
