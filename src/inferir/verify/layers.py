"""Module by module and op by op: what an artifact computes against eager, in a prompt step and a decode step.

Modules' outputs are taken from eager by hooks. The captured graph's value for a module is the last one that is made in
it; the artifact's is the kernel result of the same provenance. Where the value stays inside a kernel, it names that.

Bounds of the RMS of a difference, as a share of the RMS of eager's output in float32:

f32    LAYER_BOUND, or ROUNDING times what rounding alone makes of it: float64 against float32
bf16   BF16_BOUND, or EAGER_MARGIN times what it is for eager in bfloat16
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from inferir.ir.graph.dims import R
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.registry import opdef
from inferir.runtime.loader import LoadedArtifact
from inferir.verify.artifact_chain import run_chain
from inferir.verify.bisect_passes import Pipeline
from inferir.verify.cases import Part
from inferir.verify.checks import ROUNDING
from inferir.verify.eager_reference import EagerReference
from inferir.verify.findings import json_numbers
from inferir.verify.graph_parts import inside
from inferir.verify.simulated_steps import SimulatedSteps, given_to

LAYER_BOUND = 1e-4
BF16_BOUND = 2**-7
EAGER_MARGIN = 4.0


@dataclass(frozen=True)
class Distance:
    """largest: difference of one element; share: RMS of the difference as a share of the RMS of what is expected."""

    largest: float
    share: float

    @staticmethod
    def of(expected: torch.Tensor, found: torch.Tensor) -> Distance:
        a, b = expected.double(), found.double()
        delta = (a - b).abs().nan_to_num(nan=math.inf)
        scale = float(a.pow(2).mean().sqrt())
        return Distance(float(delta.max()), float(delta.pow(2).mean().sqrt()) / (scale or 1.0))


@dataclass(frozen=True)
class LayerRow:
    """A module's output in a step. rms: eager's; captured, artifact: None where there is no such value; kernel: the
    kernel region that makes it, or that it stays in.
    """

    step: str
    bucket: str
    module: str
    rms: float
    bound: float
    captured: Distance | None
    artifact: Distance | None
    kernel: str

    @property
    def passed(self) -> bool:
        return all(d is None or d.share <= self.bound for d in (self.captured, self.artifact))


@dataclass(frozen=True)
class OpRow:
    """A result of a kernel, against the value of the same op of the captured graph in the interpreter."""

    step: str
    op: str
    kernel: str
    distance: Distance


@dataclass(frozen=True)
class Layers:
    """Rows in the order of computation; the prompt step comes first."""

    rows: tuple[LayerRow, ...]
    ops: tuple[OpRow, ...]

    @property
    def first(self) -> LayerRow | None:
        """The first module's output that is out of bound."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def passed(self) -> bool:
        return self.first is None

    def as_json(self) -> dict[str, Any]:
        """Numbers that JSON lacks are texts."""
        rows = [{**asdict(row), "passed": row.passed} for row in self.rows]
        first = None if self.first is None else self.first.module
        out: dict[str, Any] = json_numbers({"passed": self.passed, "first": first, "rows": rows})
        return {**out, "ops": json_numbers([asdict(op) for op in self.ops])}


def captured_values(pipeline: Pipeline, ids: Sequence[int]) -> dict[Node, torch.Tensor]:
    """What every op of the captured graph makes of a sequence."""
    graph = pipeline.stages[0].graph
    vocabulary = int(graph.output("logits").type.shape[-1])
    simulated = SimulatedSteps([ids], (), pipeline.options.limits, vocabulary, all_rows=True)
    found: dict[Node, torch.Tensor] = {}

    def observe(node: Node, results: tuple[Any, ...]) -> None:
        if not opdef(node.op).source and isinstance(results[0], torch.Tensor):
            found[node] = results[0]

    with torch.no_grad():
        inputs = given_to(graph, simulated.step([Part("", "", 0, 0, len(ids))]).values)
        interpret(graph, inputs, {n: pipeline.checkpoint[n] for n in graph.weights()}, observe)
    return found


def module_nodes(graph: Graph, modules: Mapping[str, torch.Tensor]) -> dict[str, Node]:
    """The node whose value is what a module returns: the last one in it, in the order of these nodes."""
    last: dict[str, Node] = {}
    for node in graph.nodes:
        if opdef(node.op).source:
            continue
        path = node.loc.module
        while path:
            if path in modules:
                last[path] = node
            path = path.rpartition(".")[0]
    order = {node: i for i, node in enumerate(graph.nodes)}
    return dict(sorted(last.items(), key=lambda item: (order[item[1]], -len(item[0]))))


def bounds(eager: EagerReference, dtype: DType, number: int) -> dict[str, float]:
    """The bound of every module's output, for sequence `number`."""
    reference = eager.modules(DType.F32, number)
    other = eager.modules(DType.F64 if dtype is DType.F32 else dtype, number)
    floor, margin = (LAYER_BOUND, ROUNDING) if dtype is DType.F32 else (BF16_BOUND, EAGER_MARGIN)
    return {
        name: max(floor, margin * Distance.of(value, other[name]).share)
        for name, value in reference.items()
        if name in other and other[name].shape == value.shape
    }


def compare_layers(
    artifact: LoadedArtifact, graph: Graph, pipeline: Pipeline, eager: EagerReference, dtype: DType, threads: int
) -> Layers:
    """Compare the first sequence of `eager`: a prompt step of all tokens but the last, then a decode step."""
    limits = artifact.manifest.limits
    ids = list(eager.sequences[0])[: min(len(eager.sequences[0]), limits.max_tokens + 1)]
    eager = EagerReference(eager.source, [ids], eager.models)
    reference, allowed = eager.modules(DType.F32, 0), bounds(eager, dtype, 0)
    captured = captured_values(pipeline, ids)
    nodes = {m: n for m, n in module_nodes(pipeline.stages[0].graph, reference).items() if m in allowed}
    vocabulary = int(graph.output("logits").type.shape[1])
    simulated = SimulatedSteps([ids], artifact.manifest.kv, limits, vocabulary)
    cut = max(1, len(ids) - 1)
    steps = [("prompt", Part("", "prompt", 0, 0, cut))]
    if cut < len(ids):
        steps.append(("decode", Part("", "decode", 0, cut, len(ids) - cut)))
    rows: list[LayerRow] = []
    ops: list[OpRow] = []
    for kind, part in steps:
        results: dict[Value, torch.Tensor] = {}
        bucket, step = run_chain(artifact, graph, simulated, [part], threads, results.__setitem__)
        made = _by_provenance(results, step.rows, part)
        kernels = _kernels(graph)
        for module, node in nodes.items():
            want = _tokens(reference[module], len(ids))
            own = _tokens(captured[node], len(ids)) if node in captured else None
            if want is None or (own is not None and own.shape != want.shape):
                continue
            tokens, value, kernel = made.get(str(node.loc), ([], None, kernels.get(str(node.loc), "")))
            span = slice(part.start, part.start + part.count)
            ours = None if value is None or value.shape[1] != want.shape[1] else Distance.of(want[tokens], value)
            rows.append(
                LayerRow(
                    step=kind,
                    bucket=bucket,
                    module=module,
                    rms=float(want[span].pow(2).mean().sqrt()),
                    bound=allowed[module],
                    captured=None if own is None else Distance.of(want[span], own[span]),
                    artifact=ours,
                    kernel=kernel,
                )
            )
        ops += _ops(kind, made, captured, len(ids))
    return Layers(tuple(rows), tuple(ops))


Made = dict[str, tuple[list[int], torch.Tensor, str]]


def _by_provenance(results: Mapping[Value, torch.Tensor], rows: Sequence[int], part: Part) -> Made:
    """Kernel results by the op that makes them: positions, value [tokens, features], and the kernel's name."""
    found: Made = {}
    for value, tensor in results.items():
        out = value.node.attrs["body"].outputs[value.index]
        if not tensor.is_floating_point() or tensor.dim() < 2 or out.op == "kv.write":
            continue
        order = rows if value.type.shape[0] == R else range(part.count)
        if tensor.shape[0] == len(order):
            tokens = [part.start + token for token in order]
            name = str(value.node.attrs["name"])
            found[str(out.node.loc)] = (tokens, tensor.reshape(len(tokens), -1).double(), name)
    return found


def _kernels(graph: Graph) -> dict[str, str]:
    """By provenance of every op inside a kernel, the kernel."""
    return {
        str(node.loc): f"inside {region.attrs['name']}"
        for region in graph.nodes
        if region.op == "kernel.region"
        for node in region.attrs["body"].nodes
    }


def _ops(kind: str, made: Made, captured: Mapping[Node, torch.Tensor], length: int) -> list[OpRow]:
    last = {str(node.loc): value for node, value in captured.items()}
    out = []
    for place, (tokens, value, kernel) in made.items():
        want = _tokens(last[place], length) if place in last else None
        if want is not None and want.shape[1] == value.shape[1]:
            out.append(OpRow(kind, place, kernel, Distance.of(want[tokens], value)))
    return out


def _tokens(tensor: torch.Tensor, length: int) -> torch.Tensor | None:
    """[tokens, features] in float64; None if tokens are neither in the first axis nor behind one of size 1."""
    if tensor.dim() >= 2 and tensor.shape[0] == 1 and tensor.shape[1] == length:
        tensor = tensor[0]
    return tensor.reshape(length, -1).double() if tensor.dim() >= 1 and tensor.shape[0] == length else None


@dataclass(frozen=True)
class CaptureFault:
    """The first module of the captured graph whose output is out of bound. nodes: those inside it; output: the last of
    them; values: of all nodes; expected: eager's output [tokens, features].
    """

    module: str
    nodes: list[Node]
    output: Node
    values: Mapping[Node, torch.Tensor]
    expected: torch.Tensor
    bound: float
    distance: Distance


def first_in_capture(pipeline: Pipeline, eager: EagerReference, dtype: DType, number: int) -> CaptureFault | None:
    """Where the captured graph leaves eager first, on sequence `number`; None if no module's output tells."""
    ids = eager.sequences[number]
    reference, allowed = eager.modules(DType.F32, number), bounds(eager, dtype, number)
    captured = captured_values(pipeline, ids)
    graph = pipeline.stages[0].graph
    for module, node in module_nodes(graph, reference).items():
        want = _tokens(reference[module], len(ids))
        have = _tokens(captured[node], len(ids)) if node in captured else None
        if module not in allowed or want is None or have is None or want.shape != have.shape:
            continue
        distance = Distance.of(want, have)
        if not distance.share <= allowed[module]:
            nodes = [n for n in graph.nodes if inside(n, module) and n in captured]
            return CaptureFault(module, nodes, node, captured, want, allowed[module], distance)
    return None
