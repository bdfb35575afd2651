"""What a pass did wrong: the smallest part of the graph that differs, and a case that shows it alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.registry import opdef
from inferir.verify.bisect_passes import Pipeline, Stage
from inferir.verify.cases import Part
from inferir.verify.findings import TensorFacts, Worst
from inferir.verify.graph_parts import Sketch, cut_out, first_difference, inside, only_in
from inferir.verify.reproduce_pass import PassCase, compare
from inferir.verify.simulated_steps import SimulatedSteps, given_to

TOLERANCE = {DType.F32: 1e-5, DType.BF16: 2e-2, DType.F16: 2e-3}
"""RMS of a difference, as a share of a value's RMS, up to which two values count as equal."""

_MOST_LINES = 60


@dataclass(frozen=True)
class PassEvidence:
    """module: where the pass changed values first. before, after: the nodes there that only one of the graphs has.

    case, graph, inputs, weights: what `reproduce_pass.compare` finds the fault with; graph is None where it finds none.
    """

    module: str
    before: str
    after: str
    case: PassCase
    graph: Graph | None
    inputs: Mapping[str, torch.Tensor]
    weights: Mapping[str, torch.Tensor]
    facts: tuple[TensorFacts, ...]
    worst: Worst | None


def evidence(pipeline: Pipeline, number: int, dtype: DType, sequence: Sequence[int]) -> PassEvidence:
    """What stage `number` of the pipeline changed, on a step of all tokens of `sequence`."""
    stage, last = pipeline.stages[number], pipeline.stages[number - 1]
    tolerance = TOLERANCE[dtype]
    module = _module(pipeline, last, stage, sequence, tolerance)
    gone, new = only_in(last.graph, stage.graph, module), only_in(stage.graph, last.graph, module)
    vocabulary = int(last.graph.output("logits").type.shape[-1])
    case = PassCase.of(stage.name, stage.turn, tolerance, pipeline.options, vocabulary)
    found = _smallest(case, pipeline, last, module, sequence, vocabulary)
    graph, inputs, weights, worst = found or (None, {}, {}, None)
    facts = tuple(TensorFacts.of(name, tensor) for name, tensor in inputs.items())
    return PassEvidence(
        module, text(last.graph, gone), text(stage.graph, new), case, graph, inputs, weights, facts, worst
    )


def text(graph: Graph, nodes: Sequence[Node]) -> str:
    """IR of these nodes, shortened where it is long."""
    if not nodes:
        return ""
    part, _ = cut_out(graph, nodes)
    lines = print_graph(part).splitlines()
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"  … {len(lines) - _MOST_LINES:,} more lines", "}"]
    return "\n".join(lines)


def _module(pipeline: Pipeline, last: Stage, stage: Stage, sequence: Sequence[int], tolerance: float) -> str:
    """The module of the first value that differs for good; "" where none does."""
    sketches: list[dict[Value, Sketch]] = []
    for each in (last, stage):
        seen: dict[Value, Sketch] = {}

        def observe(node: Node, results: tuple[Any, ...], seen: dict[Value, Sketch] = seen) -> None:
            for value, result in zip(node.results, results, strict=True):
                sketch = Sketch.of(result)
                if sketch is not None and not opdef(node.op).source:
                    seen[value] = sketch

        staged = pipeline.staged(each.graph)
        with contextlib.suppress(InferirError, RuntimeError, ValueError, IndexError):  # what came until then counts
            staged.logits([sequence], [[Part("", "", 0, 0, len(sequence))]], observe)
        sketches.append(seen)
    first = first_difference(sketches[0], staged.graph, sketches[1], tolerance)
    return "" if first is None else first.loc.module


Case = tuple[Graph, dict[str, torch.Tensor], dict[str, torch.Tensor], Worst | None]


def _smallest(
    case: PassCase, pipeline: Pipeline, last: Stage, module: str, sequence: Sequence[int], vocabulary: int
) -> Case | None:
    """The smallest of some parts of the graph before the pass in which the pass still does its damage."""
    values = _values(pipeline, last, sequence, vocabulary)
    for part, inputs in _parts(last.graph, module):
        given = {label: values[value] for label, value in inputs.items() if value in values}
        weights = {n: pipeline.weights[n] for n in part.weights()}
        try:
            share, worst = compare(case, part, given, weights)
        except Exception:  # a pass may not take what is no whole graph, and fail in any way
            continue
        if share > case.tolerance:
            return part, given, weights, worst
    return None


def _parts(graph: Graph, module: str) -> Iterator[tuple[Graph, dict[str, Value]]]:
    """Parts that hold the nodes of `module`, then of the modules it is in, then the whole graph."""
    while module:
        nodes = [n for n in graph.nodes if inside(n, module) and not opdef(n.op).source]
        if nodes:
            yield cut_out(graph, nodes)
        module = module.rpartition(".")[0]
    yield graph, dict(zip(graph.input_names, graph.inputs, strict=True))


def _values(pipeline: Pipeline, stage: Stage, sequence: Sequence[int], vocabulary: int) -> dict[Value, torch.Tensor]:
    """All values of a graph in a step of all tokens of `sequence`."""
    graph = stage.graph
    paged = any(g.slots in graph.input_names for g in pipeline.result.kv)
    groups = pipeline.result.kv if paged else ()
    simulated = SimulatedSteps([sequence], groups, pipeline.options.limits, vocabulary, all_rows=True)
    given = {**simulated.step([Part("", "", 0, 0, len(sequence))]).values, **(simulated.caches() if paged else {})}
    inputs = given_to(graph, given)
    values: dict[Value, torch.Tensor] = {
        v: inputs[n] for n, v in zip(graph.input_names, graph.inputs, strict=True) if n in inputs
    }

    def observe(node: Node, results: tuple[Any, ...]) -> None:
        values.update((v, r) for v, r in zip(node.results, results, strict=True) if isinstance(r, torch.Tensor))

    with torch.no_grad():
        interpret(graph, inputs, {n: pipeline.weights[n] for n in graph.weights()}, observe)
    return values
