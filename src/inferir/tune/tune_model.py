"""Tuning: every matrix product of a model with several tiles, measured on this machine, one record after another.

    load source → trace → passes → products of all buckets → build candidates → race → record

The file of records is written after every product. Interrupted at any moment it is valid, and the next run goes on
where this one stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferir.codegen.backend import Backend, Context
from inferir.codegen.backends import backend_for, target_named
from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.codegen.library import distinct
from inferir.codegen.tunables import Product, Race, Tuning, build_races, tuning_of
from inferir.compile.compile_types import CompileOptions, DebugOptions, Progress, one_step
from inferir.compile.compiler import capture, contexts_of, lower, resolve
from inferir.compile.tuning_records import TuningKey, TuningRecord, read_records, write_records
from inferir.compile.tuning_use import all_products, tuning_key
from inferir.frontend.source.model_source import load_source
from inferir.ir.contract.target import Target, host_features, missing_features
from inferir.ir.errors import InferirError, TargetError, TuningError
from inferir.ir.graph.graph import Node
from inferir.runtime.machine import thread_count
from inferir.tune.kernel_host import KernelHost, Weights, weight_bytes
from inferir.tune.race import LEAST_ROUNDS, RaceResult, decide


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """How to measure. Raises `InferirError` naming an option that makes no sense.

    rounds: measurements per tile and race; minutes: no product is begun after so long (None: all are done); again:
    measure what is recorded already; threads: compute threads (None: one per usable processor); jobs: build processes.
    """

    rounds: int = 20
    minutes: float | None = None
    again: bool = False
    threads: int | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        if self.rounds < LEAST_ROUNDS:
            raise InferirError(f"rounds is {self.rounds}; fewer than {LEAST_ROUNDS} show no spread")
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise InferirError(f"minutes is {self.minutes}; give a positive number")


@dataclass
class TuneReport:
    """What a run did: `measured` now, `known` from before; `left`: products without a record, for the time was up."""

    path: Path
    model: str
    target: Target
    threads: int
    measured: list[TuningRecord] = field(default_factory=list)
    known: list[TuningRecord] = field(default_factory=list)
    left: int = 0
    seconds: float = 0.0

    @property
    def records(self) -> list[TuningRecord]:
        return sorted((*self.known, *self.measured), key=lambda r: (r.key.most, r.key.lo, r.key.k, r.key.n))


@dataclass(frozen=True)
class _Job:
    product: Product
    region: Node
    context: Context
    key: TuningKey


def tune_model(
    spec: str,
    out: str | os.PathLike[str],
    options: CompileOptions | None = None,
    how: TuneOptions | None = None,
    *,
    cache: CompileCache | None = None,
    progress: Progress | None = None,
) -> TuneReport:
    """Measure tiles for the matrix products of the model `spec` compiled with `options`, and record them in `out`.

    A file that is there is added to. Raises an `InferirError` of one line; finished records are kept.
    """
    options, how = options or CompileOptions(), how or TuneOptions()
    start = time.monotonic()
    path = Path(out)
    records = _stored(path)
    target = target_named(options.target)
    backend = backend_for(target)
    tuning = tuning_of(backend)
    lacking = missing_features(target, host_features())
    if lacking:
        raise TargetError(f"kernels for {target.name} cannot be measured: this machine lacks {', '.join(lacking)}")
    cache = cache if cache is not None else CompileCache.from_env(CacheOptions())
    say = progress or (lambda phase, done, total: None)
    report = TuneReport(path, "", target, thread_count(how.threads))
    jobs = _jobs(spec, options, tuning, cache, say, report)
    todo = [j for j in jobs if how.again or j.key not in records]
    report.known = [records[j.key] for j in jobs if not how.again and j.key in records]
    write_records(path, records.values())  # a place that cannot be written to is found before anything is measured
    runner = _Runner(report, records, backend, how, cache, say)
    runner.run(todo, None if how.minutes is None else start + 60 * how.minutes)
    report.left = len(todo) - len(report.measured)
    report.seconds = time.monotonic() - start
    return report


def _stored(path: Path) -> dict[TuningKey, TuningRecord]:
    """Records of the file that is to be added to, if there is one. Refuses a place in no folder."""
    if not path.parent.is_dir():
        raise TuningError(f"{path}: cannot be written: there is no folder {path.parent}")
    return {r.key: r for r in read_records(path)} if path.exists() else {}


def _jobs(
    spec: str, options: CompileOptions, tuning: Tuning, cache: CompileCache, say: Progress, report: TuneReport
) -> list[_Job]:
    """The products of the model that have more than one candidate, small row counts first."""
    source = load_source(spec, options.dtype, options.revision, options.trust_remote_code)
    with one_step("trace", say):
        captured = capture(source, options, cache)
    options = resolve(options, captured.facts)
    with one_step("passes", say):
        result = lower(captured, options, report.target, DebugOptions())
    report.model = captured.facts.name
    regions = distinct(op.region for op in result.plan.ops).values()
    found = all_products(tuning, regions, contexts_of(options, report.target))
    return [
        _Job(product, region, context, tuning_key(product, tuning, report.target, report.threads))
        for product, (region, context) in found.items()
        if len(tuning.candidates(product, report.target)) > 1
    ]


@dataclass
class _Runner:
    """Builds candidates batch by batch, as many side by side as there are processes, and races them one by one."""

    report: TuneReport
    records: dict[TuningKey, TuningRecord]
    backend: Backend
    how: TuneOptions
    cache: CompileCache
    say: Progress
    weights: Weights | None = None

    def __post_init__(self) -> None:
        self.tuning = tuning_of(self.backend)
        self.processes = self.how.jobs or len(os.sched_getaffinity(0))

    def run(self, todo: Sequence[_Job], end: float | None) -> None:
        """Work through `todo` until `end` on the monotonic clock. Builds and measurements never run side by side."""
        built = 0
        for at in range(0, len(todo), self.processes):
            batch = todo[at : at + self.processes]
            if _over(end):
                return
            self.say("build", built, len(todo))
            races = [self.tuning.race(job.product, job.region, job.context) for job in batch]
            libraries = build_races(self.backend, races, self.report.target, self.cache, self.processes)
            built += len(batch)
            self.say("build", built, len(todo))
            for job, race, library in zip(batch, races, libraries, strict=True):
                if _over(end):
                    return
                self.say("measure", len(self.report.measured), len(todo))
                self._keep(job, race, self.measure(race, library))
                self.say("measure", len(self.report.measured), len(todo))

    def measure(self, race: Race, library: bytes) -> RaceResult:
        nbytes = Weights.size(weight_bytes(race))
        if self.weights is None or len(self.weights.memory) < nbytes:
            self.weights = None  # give the smaller memory back first
            self.weights = Weights(nbytes)
        with KernelHost(race, library, self.weights, self.report.threads) as host:
            return decide(len(race.choices), self.how.rounds, host.measure)

    def _keep(self, job: _Job, race: Race, result: RaceResult) -> None:
        """Record a result, in the file as well."""
        record = TuningRecord(
            key=job.key,
            default=self.tuning.record(race.choices[0]),
            tile=self.tuning.record(race.choices[result.winner]) if result.winner else None,
            default_seconds=result.default.median,
            seconds=(result.best if result.winner else result.default).median,
            spread=max(result.default.spread, result.best.spread),
            candidates=len(race.choices),
            rounds=self.how.rounds,
        )
        self.records[job.key] = record
        write_records(self.report.path, self.records.values())
        self.report.measured.append(record)


def _over(end: float | None) -> bool:
    return end is not None and time.monotonic() > end
