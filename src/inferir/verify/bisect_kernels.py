"""The first kernel region whose results leave their bound.

A bucket's kernels run region by region in the order of a step, each on the operands that the reference interpreter has
for it, with weights that come from the checkpoint, not from the artifact. So one wrong region does not hide the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inferir.codegen.library import region_digest
from inferir.ir.contract.kernel_args import KernelArg, Of, Operand, Resident, Result, Workspace
from inferir.ir.contract.manifest import ArenaArg, Arg, BucketRecord, Call, Manifest, ResidentArg
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.errors import ArtifactError
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.interpreter import interpret
from inferir.passes.step_plan import PlannedOp, StepPlan, plan
from inferir.runtime.loader import LoadedArtifact
from inferir.verify.cases import Part, Schedule, steps
from inferir.verify.region_bound import Deviation, Expected
from inferir.verify.region_kernels import OverrunError, RegionCall, RegionKernels
from inferir.verify.simulated_steps import SimulatedSteps, StepInputs, given_to

STEPS_OF_A_KIND = 3
"""Steps of a bucket and kind whose kernels are run."""


@dataclass(frozen=True)
class RegionRun:
    """A region in a step, with its operands: what came out, and how far that is from what is expected."""

    bucket: str
    kind: str
    number: int
    region: Node
    call: RegionCall
    kernels: tuple[str, ...]
    operands: tuple[torch.Tensor, ...]
    fixed: tuple[bool, ...]
    sizes: Mapping[str, int]
    counts: StepCounts
    deviation: Deviation
    problem: str = ""

    @property
    def digest(self) -> str:
        return region_digest(self.region)

    @property
    def passed(self) -> bool:
        return self.deviation.passed and not self.problem


class KernelSearch:
    """Runs the kernels of an artifact against the interpreter. graph: the artifact's own kernel graph."""

    def __init__(
        self, artifact: LoadedArtifact, graph: Graph, weights: Mapping[str, torch.Tensor], threads: int
    ) -> None:
        self._artifact = artifact
        self._graph = graph
        self._weights = weights
        self._threads = threads
        self._manifest = artifact.manifest
        self._plan = plan_of(self._manifest, graph)
        self._done: dict[tuple[str, str], int] = {}
        self._number = {op.region: i for i, op in enumerate(self._plan.ops)}

    def run(
        self,
        schedules: Sequence[Schedule],
        sequences: Sequence[Sequence[int]],
        found: Callable[[RegionRun], None],
        say: Callable[[int, int], None],
    ) -> None:
        """Run all schedules in the interpreter, and some steps of every bucket and kind in the kernels; `found` is
        called with every region of these."""
        hosts = {b.name: self._host(b) for b in self._manifest.buckets}
        try:
            for number, schedule in enumerate(schedules):
                say(number, len(schedules))
                self._run(schedule, sequences, hosts, found)
            say(len(schedules), len(schedules))
        finally:
            for host, _, _ in hosts.values():
                host.__exit__(None, None, None)

    def _host(self, bucket: BucketRecord) -> tuple[RegionKernels, list[RegionCall], BucketRecord]:
        residents = resident_bytes(self._manifest)
        kernels = RegionKernels(self._artifact.path / bucket.library, bucket.scratch_bytes, self._threads, residents)
        return kernels, region_calls(self._manifest, bucket, self._plan), bucket

    def _run(
        self,
        schedule: Schedule,
        sequences: Sequence[Sequence[int]],
        hosts: Mapping[str, tuple[RegionKernels, list[RegionCall], BucketRecord]],
        found: Callable[[RegionRun], None],
    ) -> None:
        texts = [sequences[i][:n] for i, n in enumerate(schedule.lengths)]
        vocabulary = int(self._graph.output("logits").type.shape[1])
        simulated = SimulatedSteps(texts, self._manifest.kv, self._manifest.limits, vocabulary)
        left = list(steps(schedule, self._manifest.buckets))
        while left:
            kinds = {(parts[0].bucket, parts[0].kind) for parts in left}
            if all(self._done.get(kind, 0) >= STEPS_OF_A_KIND for kind in kinds):
                return
            parts = left.pop(0)
            kind = (parts[0].bucket, parts[0].kind)
            self._done[kind] = self._done.get(kind, 0) + 1
            host = hosts[parts[0].bucket] if self._done[kind] <= STEPS_OF_A_KIND else None
            self._step(simulated, parts, host, found)

    def _step(
        self,
        simulated: SimulatedSteps,
        parts: Sequence[Part],
        host: tuple[RegionKernels, list[RegionCall], BucketRecord] | None,
        found: Callable[[RegionRun], None],
    ) -> None:
        tile = host[2].attn_tile if host is not None else None
        step = simulated.step(parts, tile)
        inputs = given_to(self._graph, {**step.values, **simulated.caches()})
        sizes = {**self._manifest.limits.bounds, **symbol_sizes(step, simulated)}
        values: dict[Value, torch.Tensor] = {
            v: inputs[n] for n, v in zip(self._graph.input_names, self._graph.inputs, strict=True)
        }

        def observe(node: Node, results: tuple[Any, ...]) -> None:
            values.update(zip(node.results, results, strict=True))
            if host is not None and node.op == "kernel.region":
                operands = tuple(values[v] for v in node.operands)
                found(self._region(node, operands, results, sizes, step.counts, host, parts[0]))

        with torch.no_grad():
            weights = {n: self._weights[n] for n in self._graph.weights()}
            simulated.keep(interpret(self._graph, inputs, weights, observe))

    def _region(
        self,
        region: Node,
        operands: tuple[torch.Tensor, ...],
        results: tuple[torch.Tensor, ...],
        sizes: Mapping[str, int],
        counts: StepCounts,
        host: tuple[RegionKernels, list[RegionCall], BucketRecord],
        part: Part,
    ) -> RegionRun:
        kernels, calls, bucket = host
        number = self._number[region]
        call, body = calls[number], region.attrs["body"]
        fixed = tuple(v.op == "core.weight" for v in region.operands)
        deviation, problem = Deviation(0.0, None), ""
        try:
            have = kernels.run(call, body, operands, sizes, counts)
            deviation = Expected(body, operands, fixed, results).deviation(have)
        except OverrunError as error:
            problem = str(error)
        names = tuple(bucket.kernels[k].name for k in call.kernels)
        return RegionRun(
            part.bucket, part.kind, number, region, call, names, operands, fixed, sizes, counts, deviation, problem
        )


def region_calls(manifest: Manifest, bucket: BucketRecord, step: StepPlan) -> list[RegionCall]:
    """The kernels of every operation of a step. Raises `ArtifactError` if the program is not one of these regions."""
    calls: list[RegionCall] = []
    program = list(bucket.program)
    for op in step.ops:
        digest = region_digest(op.region)
        kernels = [k.id for k in bucket.kernels if k.region == digest]
        taken, program = program[: len(kernels)], program[len(kernels) :]
        if not kernels or [c.kernel for c in taken] != kernels:
            raise ArtifactError(
                f"bucket {bucket.name} does not run the regions of ir/kernels.txt in their order (at "
                f"{op.region.attrs['name']}); compile the model again"
            )
        calls.append(_region_call(op, taken, step, manifest))
    if program:
        raise ArtifactError(f"bucket {bucket.name} runs more kernels than ir/kernels.txt has regions for")
    return calls


def _region_call(op: PlannedOp, calls: Sequence[Call], step: StepPlan, manifest: Manifest) -> RegionCall:
    body: Graph = op.region.attrs["body"]
    in_place = {
        i: body.inputs.index(out.node.operands[0]) for i, out in enumerate(body.outputs) if out.op == "kv.write"
    }
    own = [i for i in range(len(body.outputs)) if i not in in_place]
    known: dict[Arg, KernelArg] = {}
    for place, arg in enumerate(op.args):
        inputs = len(op.region.operands)
        known.setdefault(arg, Operand(place) if place < inputs else Result(own[place - inputs]))
    return RegionCall(
        name=str(op.region.attrs["name"]),
        kernels=tuple(c.kernel for c in calls),
        args=tuple(tuple(_kernel_arg(a, known, step.arena_bytes) for a in c.args) for c in calls),
        in_place=in_place,
        workspace_bytes=manifest.memory.arena_bytes - step.arena_bytes,
    )


def _kernel_arg(arg: Arg, known: Mapping[Arg, KernelArg], arena_bytes: int) -> KernelArg:
    if arg in known:
        return known[arg]
    match arg:
        case ResidentArg(name):
            return Resident(name)
        case ArenaArg(offset) if offset >= arena_bytes:
            return Workspace(offset - arena_bytes)
    return Of("", "")


def plan_of(manifest: Manifest, graph: Graph) -> StepPlan:
    return plan(graph, manifest.limits.bounds, manifest.kv, {r.name for r in manifest.residents})


def symbol_sizes(step: StepInputs, simulated: SimulatedSteps) -> dict[str, int]:
    counts = step.counts
    return {
        "T": counts.tokens,
        "S": counts.seqs,
        "R": counts.rows,
        "G": counts.argmax,
        "A": counts.items,
        "E": 1,
        "NB": simulated.num_blocks,
    }


def resident_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes of every resident buffer, by name."""
    sizes = manifest.limits.bounds
    return {
        r.name: r.dtype.itemsize * math.prod(d if isinstance(d, int) else sizes[d] for d in r.shape)
        for r in manifest.residents
    }
