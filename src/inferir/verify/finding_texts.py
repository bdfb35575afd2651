"""Findings from what the stages of a bisection measured, with their reproducers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from inferir.ir.contract.bucket import Bucket
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.registry import opdef
from inferir.runtime.loader import LoadedArtifact
from inferir.verify import reproduce_capture, reproduce_kernel, reproduce_pass, reproduce_weight
from inferir.verify.bisect_kernels import RegionRun, resident_bytes
from inferir.verify.bisect_passes import Pipeline
from inferir.verify.bisect_weights import WrongWeight
from inferir.verify.findings import Finding, TensorFacts
from inferir.verify.graph_parts import cut_out
from inferir.verify.layers import CaptureFault
from inferir.verify.logit_bound import Reach
from inferir.verify.pass_evidence import evidence, text
from inferir.verify.reproduce_kernel import KernelCase, describe
from inferir.verify.reproducer import ReproducerFolder


def pass_finding(
    pipeline: Pipeline,
    number: int,
    dtype: DType,
    reaches: Mapping[int, Reach],
    sequence: Sequence[int],
    reproducers: ReproducerFolder,
) -> Finding:
    """Stage `number` is the first out of bound."""
    stage = pipeline.stages[number]
    seen = evidence(pipeline, number, dtype, sequence)
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    if seen.graph is not None:
        folder = reproducers.write(
            f"pass {stage.name}",
            f"compares what the graph in graph.txt computes before and after the pass {stage.name} of the installed\n"
            "Inferir, on the inputs and weights beside this file.",
            "reproduce_pass",
            {
                reproduce_pass.GRAPH: print_graph(seen.graph) + "\n",
                reproduce_pass.INPUTS: seen.inputs,
                reproduce_pass.WEIGHTS: seen.weights,
                reproduce_pass.PASS: msgspec.json.format(msgspec.json.encode(seen.case)),
            },
        )
    else:
        notes = ("the difference does not show on one step of the whole graph: no reproducer was written",)
    before = reaches[number - 1]
    return Finding(
        kind="pass",
        name=stage.name,
        where=f"pass {number} of {len(pipeline.stages) - 1}, {stage.title}, in {seen.module or 'several modules'}",
        measured=f"after it: {reaches[number]}; before it: {before.measured:.2e}",
        before=seen.before,
        after=seen.after,
        inputs=seen.facts,
        worst=seen.worst,
        notes=notes,
        reproducer=None if folder is None else str(folder),
    )


def kernel_finding(
    runs: Sequence[RegionRun], artifact: LoadedArtifact, threads: int, reproducers: ReproducerFolder
) -> Finding:
    """Runs of a region that left their bound; the first has its operands."""
    first, manifest = runs[0], artifact.manifest
    bucket = next(b for b in manifest.buckets if b.name == first.bucket)
    body: Graph = first.region.attrs["body"]
    case = KernelCase(
        call=first.call,
        kernels=first.kernels,
        anchor=str(first.region.attrs["anchor"]),
        bucket=Bucket(bucket.lo, bucket.hi, bucket.decode),
        target=manifest.target,
        limits=manifest.limits,
        fixed=first.fixed,
        sizes=dict(first.sizes),
        counts=tuple(first.counts),
        scratch_bytes=bucket.scratch_bytes,
        residents=resident_bytes(manifest),
        threads=threads,
    )
    name = " and ".join(first.kernels)
    folder = reproducers.write(
        f"kernel {name}",
        f"runs {name} of bucket {bucket.name} from library.so on the operands beside this file, and compares the\n"
        "results with those of the reference interpreter. --rebuild builds the kernels anew first.",
        "reproduce_kernel",
        {
            reproduce_kernel.BODY: print_graph(body) + "\n",
            reproduce_kernel.INPUTS: {str(i): t for i, t in enumerate(first.operands)},
            reproduce_kernel.KERNEL: msgspec.json.format(msgspec.json.encode(case)),
            reproduce_kernel.LIBRARY: (artifact.path / bucket.library).read_bytes(),
        },
        takes_options=True,
    )
    places = dict.fromkeys(f"{r.bucket} {r.kind}" for r in runs)
    modules = dict.fromkeys(r.region.loc.module or "the model" for r in runs)
    notes = [f"the same in {', '.join(list(places)[1:])}"] if len(places) > 1 else []
    if len(modules) > 1:
        notes.append(f"and in {', '.join(list(modules)[1:6])}")
    notes += [
        f"{file} of bucket {b.name} was replaced by --override"
        for b in manifest.buckets
        for file in b.replaced
        if b.name in {r.bucket for r in runs}
    ]
    worst = first.deviation.worst
    return Finding(
        kind="kernel",
        name=name,
        where=f"bucket {bucket.name}, {first.kind} step, region {first.call.name} in "
        f"{first.region.loc.module or 'the model'}",
        measured=first.problem or (describe(worst) if worst is not None else ""),
        before=print_graph(body),
        inputs=tuple(
            TensorFacts.of(_operand_name(v), t) for v, t in zip(first.region.operands, first.operands, strict=True)
        ),
        worst=worst,
        notes=tuple(notes),
        reproducer=str(folder),
    )


def _operand_name(value: Value) -> str:
    if opdef(value.op).source:
        return str(value.node.attrs["name"])
    return f"{value.node.attrs['name']} of {value.node.loc.module or 'the model'}"


def weight_finding(wrong: WrongWeight, graph: Graph, pipeline: Pipeline, reproducers: ReproducerFolder) -> Finding:
    """A stored tensor that is not what its transform makes. graph: the artifact's own."""
    transform = pipeline.result.transforms.get(wrong.name)
    notes: list[str] = []
    if transform is None:
        value = next(v for n, v in graph.weights().items() if n == wrong.name)
        transform = Graph((), (value,), ("value",), wrong.name)
    sources = {n: pipeline.checkpoint[n] for n in transform.weights()}
    folder = reproducers.write(
        f"weight {wrong.name}",
        "computes the weight from the tensors of the checkpoint beside this file, as transform.txt says, and compares\n"
        "it with what the artifact has.",
        "reproduce_weight",
        {
            reproduce_weight.TRANSFORM: print_graph(transform) + "\n",
            reproduce_weight.CHECKPOINT: sources,
            reproduce_weight.STORED: {wrong.name: wrong.stored},
        },
    )
    users = [n.loc.module or "the model" for v in [graph.weights().get(wrong.name)] if v for n in graph.users()[v]]
    if users:
        notes.append(f"read by {', '.join(dict.fromkeys(users))}")
    return Finding(
        kind="weight",
        name=wrong.name,
        where=f"{wrong.record.file}, {wrong.record.nbytes:,} bytes at {wrong.record.offset:,}",
        measured=wrong.measured,
        before=print_graph(transform),
        inputs=(TensorFacts.of("stored", wrong.stored), TensorFacts.of("expected", wrong.expected)),
        worst=wrong.first,
        notes=tuple(notes),
        reproducer=str(folder),
    )


def graph_finding(graph: Graph, pipeline: Pipeline, reach: Reach) -> Finding:
    """The recorded graph is out of bound, and is not what the pipeline makes today."""
    today = {n.attrs["body"].structural_hash() for n in pipeline.result.graph.nodes if n.op == "kernel.region"}
    regions = [n for n in graph.nodes if n.op == "kernel.region"]
    other = next((n for n in regions if n.attrs["body"].structural_hash() not in today), None)
    twin = None
    if other is not None:
        alike = (n for n in pipeline.result.graph.nodes if n.op == "kernel.region" and n.loc == other.loc)
        twin = next(alike, None)
    return Finding(
        kind="graph",
        name="ir/kernels.txt" if other is None else str(other.attrs["name"]),
        where="the recorded kernel graph" if other is None else f"the region in {other.loc.module or 'the model'}",
        measured=str(reach),
        before=print_graph(twin.attrs["body"]) if twin is not None else "",
        after=print_graph(other.attrs["body"]) if other is not None else "",
        notes=("the pipeline makes another graph today: compile the model again",),
    )


def capture_finding(
    pipeline: Pipeline, fault: CaptureFault | None, reach: Reach, reproducers: ReproducerFolder
) -> Finding:
    """The captured graph itself is out of bound. fault: in which module first."""
    where = "the captured graph"
    if fault is None:
        notes = ("no module's output tells where: no reproducer was written",)
        return Finding("capture", "the whole graph", where, str(reach), notes=notes)
    graph = pipeline.stages[0].graph
    part, inputs = cut_out(graph, fault.nodes)
    given = {v.node: v for v in inputs.values()}
    values = {label: fault.values[v.node] for label, v in inputs.items() if given[v.node].node in fault.values}
    folder = reproducers.write(
        f"capture {fault.module}",
        "computes the module from the captured graph in graph.txt, and compares its output with eager's.",
        "reproduce_capture",
        {
            reproduce_capture.GRAPH: print_graph(part) + "\n",
            reproduce_capture.INPUTS: values,
            reproduce_capture.WEIGHTS: {n: pipeline.checkpoint[n] for n in part.weights()},
            reproduce_capture.EXPECTED: {"output": fault.expected, "bound": torch.tensor(fault.bound)},
        },
    )
    return Finding(
        kind="capture",
        name=fault.module,
        where=f"{where}, module {fault.module}, last op {fault.output.op}",
        measured=f"{reach}; the output is off by {fault.distance.share:.2e} of its RMS, bound {fault.bound:.2e}",
        before=text(graph, fault.nodes),
        inputs=tuple(TensorFacts.of(name, tensor) for name, tensor in values.items()),
        reproducer=str(folder),
    )
