"""An artifact's kernels run one after the other as a step runs them, with every value kept for a look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inferir.ir.contract.bucket import BatchDescriptor
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.graph.registry import opdef
from inferir.runtime.executor.dispatcher import Dispatcher
from inferir.runtime.loader import LoadedArtifact
from inferir.verify.bisect_kernels import plan_of, region_calls, resident_bytes, symbol_sizes
from inferir.verify.bisect_weights import stored
from inferir.verify.cases import Part
from inferir.verify.region_kernels import RegionKernels
from inferir.verify.simulated_steps import SimulatedSteps, StepInputs, given_to

Shown = Callable[[Value, torch.Tensor], None]


def run_chain(
    artifact: LoadedArtifact,
    graph: Graph,
    simulated: SimulatedSteps,
    parts: Sequence[Part],
    threads: int,
    shown: Shown,
) -> tuple[str, StepInputs]:
    """Run a step's kernels, each on what those before have made, with the artifact's stored weights; `shown` gets every
    result. The name of the bucket that ran, and the step. The caches stay in `simulated`.
    """
    manifest = artifact.manifest
    tokens = sum(p.count for p in parts)
    descriptor = BatchDescriptor(tokens, tokens == len(parts))
    bucket = Dispatcher([(b, b) for b in manifest.buckets]).select(descriptor)
    step = simulated.step(parts, bucket.attn_tile)
    inputs = given_to(graph, {**step.values, **simulated.caches()})
    sizes = {**manifest.limits.bounds, **symbol_sizes(step, simulated)}
    values: dict[Value, Any] = dict(zip(graph.inputs, (inputs[n] for n in graph.input_names), strict=True))
    plan = plan_of(manifest, graph)
    calls = dict(zip((op.region for op in plan.ops), region_calls(manifest, bucket, plan), strict=True))
    library = artifact.path / bucket.library
    with RegionKernels(library, bucket.scratch_bytes, threads, resident_bytes(manifest)) as kernels:
        for node in graph.nodes:
            if node.op == "core.weight":
                values[node.result] = stored(artifact, str(node.attrs["name"]))
            if opdef(node.op).source:
                continue
            operands = [values[v] for v in node.operands]
            found = kernels.run(calls[node], node.attrs["body"], operands, sizes, step.counts)
            for value, tensor in zip(node.results, found, strict=True):
                values[value] = tensor
                shown(value, tensor)
    outputs: Mapping[str, torch.Tensor] = {n: values[v] for n, v in zip(graph.output_names, graph.outputs, strict=True)}
    simulated.keep(outputs)
    return bucket.name, step
