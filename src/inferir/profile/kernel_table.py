"""From a recorded run to a row per kernel: its time, what it had to do, and how far it is from the machine's limits."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field

from inferir.ir.contract.manifest import Manifest
from inferir.profile.machine_limits import MachineLimits
from inferir.profile.operation_work import OperationWork
from inferir.profile.region_work import Work
from inferir.profile.step_runs import Run
from inferir.runtime.recording.chrome_trace import Buckets

KINDS = ("prefill", "mixed", "decode")


@dataclass
class KernelRow:
    """A kernel in the steps of one kind. Times in seconds."""

    kernel: str
    calls: int = 0
    seconds: float = 0.0
    work: Work = field(default_factory=Work)

    def least(self, limits: MachineLimits) -> float:
        """The seconds that the limits allow."""
        return self.work.seconds(limits)

    def bound(self, limits: MachineLimits) -> str:
        """What limits it: "memory", "cache" or "compute"; "" where it has no work of its own."""
        return self.work.bound(limits) if self.work != Work() else ""

    def of_limit(self, limits: MachineLimits) -> float:
        return self.least(limits) / self.seconds if self.seconds else 0.0


@dataclass
class KindTable:
    """The steps of one kind in a run. Times in seconds, of all these steps together.

    seconds: as the engine's caller saw them, in the run that is reported. recorded, unrecorded: sums of each step's
    median over the runs with a recorder, and over those without. The parts of `seconds`: `kernels`, the slowest first,
    and `phases` of the host by name, "wait" without what is in kernels.
    """

    kind: str
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recorded: float = 0.0
    unrecorded: float = 0.0
    kernels: list[KernelRow] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> float:
        """Sum of all parts as a share of the time that the caller saw."""
        return (sum(k.seconds for k in self.kernels) + sum(self.phases.values())) / self.seconds

    @property
    def ratio(self) -> float:
        """How much slower the steps were for being recorded: 1 is not at all."""
        return self.recorded / self.unrecorded


def step_medians(runs: list[Run]) -> list[float]:
    """The median seconds of each step over runs with the same steps."""
    return [statistics.median(walls) for walls in zip(*(run.walls for run in runs), strict=True)]


def tables(
    manifest: Manifest, run: Run, plain: list[float], recorded: list[float], work: OperationWork
) -> list[KindTable]:
    """A table per kind of step in a recorded run. plain, recorded: `step_medians` without and with a recorder."""
    assert run.recording is not None
    buckets = Buckets(manifest)
    found = {kind: KindTable(kind) for kind in KINDS}
    rows: dict[tuple[str, str], KernelRow] = {}
    walls = zip(run.walls, recorded, plain, strict=True)
    for step, (wall, with_recorder, without) in zip(run.recording.steps, walls, strict=False):
        table, bucket = found[step.kind], buckets.of(step)
        table.steps += 1
        table.tokens += step.tokens
        table.seconds += wall
        table.recorded += with_recorder
        table.unrecorded += without
        begin = step.begin
        for phase, end in step.phases:
            table.phases[phase] = table.phases.get(phase, 0.0) + (end - begin) / 1e9
            begin = end
        ends = step.operation_ends()
        for i, (start, end) in enumerate(itertools.pairwise(ends)):
            name = bucket.kernels[bucket.program[i].kernel].name
            row = rows.setdefault((step.kind, name), KernelRow(name))
            row.calls += 1
            row.seconds += (end - start) / 1e9
            row.work += work.of(step, bucket, i)
        if ends:
            table.phases["wait"] -= (ends[-1] - ends[0]) / 1e9
    for (kind, _), row in rows.items():
        found[kind].kernels.append(row)
    for table in found.values():
        table.kernels.sort(key=lambda row: -row.seconds)
    return [table for table in found.values() if table.steps]
