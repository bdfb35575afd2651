"""Whether a pass keeps what a graph computes: what the reproducer of a pass runs.

graph.txt            the graph before the pass, or the part of it that shows the fault
inputs.safetensors   its inputs
weights.safetensors  its weights
pass.json            which pass, with which options of the pipeline, and how far outputs may be apart
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.symbols import Limits
from inferir.ir.errors import PassError
from inferir.ir.graph.dims import T
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph
from inferir.passes.context import PassContext, PassOptions
from inferir.passes.pipeline import build_pipeline
from inferir.verify.cases import Part
from inferir.verify.findings import Worst
from inferir.verify.simulated_steps import SimulatedSteps, given_to
from inferir.verify.staged_graph import MadeWeights

GRAPH, INPUTS, WEIGHTS, PASS = "graph.txt", "inputs.safetensors", "weights.safetensors", "pass.json"

Tensors = Mapping[str, torch.Tensor]


class PassCase(msgspec.Struct, frozen=True, kw_only=True):
    """A pass in a pipeline: turn number `turn` of the passes of that name, under the options of `PassOptions`.

    tolerance: the RMS of the difference of an output, as a share of its RMS, that is no fault. vocabulary: logits of a
    row. groups: of the caches that the graph has before the pass.
    """

    name: str
    turn: int
    tolerance: float
    opt_level: int
    disabled: tuple[str, ...]
    limits: Limits
    vocab_size: int | None
    features: tuple[str, ...]
    vocabulary: int = 1

    @staticmethod
    def of(name: str, turn: int, tolerance: float, options: PassOptions, vocabulary: int) -> PassCase:
        return PassCase(
            name=name,
            turn=turn,
            tolerance=tolerance,
            opt_level=options.opt_level,
            disabled=tuple(sorted(options.disabled)),
            limits=options.limits,
            vocab_size=options.vocab_size,
            features=tuple(sorted(options.features)),
            vocabulary=vocabulary,
        )

    def apply(self, graph: Graph) -> tuple[Graph, PassContext]:
        """`graph` after the pass, and what the pass found out. Raises `PassError` if there is no such pass."""
        context = PassContext()
        options = PassOptions(
            opt_level=self.opt_level,
            disabled=frozenset(self.disabled),
            limits=self.limits,
            vocab_size=self.vocab_size,
            features=frozenset(self.features),
        )
        named = [p for p in build_pipeline(options, context) if p.name == self.name]
        if len(named) < self.turn:
            raise PassError(f"there is no pass {self.name!r} number {self.turn} in the pipeline of this installation")
        return named[self.turn - 1].run(graph), context


def compare(case: PassCase, graph: Graph, inputs: Tensors, weights: Tensors) -> tuple[float, Worst | None]:
    """How far outputs are apart before and after the pass: the largest RMS of a difference as a share of the output's
    RMS, and the element that differs most; None if none differs. Raises whatever the pass or the interpreter raises.
    """
    with torch.no_grad():
        want = interpret(graph, inputs, weights)
        after, context = case.apply(graph)
        made = MadeWeights(weights, context.transforms)
        given = {**_step_inputs(case, after, context.kv, inputs), **inputs}
        have = interpret(after, given_to(after, given), {n: made[n] for n in after.weights()})
    worst: tuple[float, Worst | None] = (0.0, None)
    for name, expected in want.items():
        if name not in have or have[name].shape != expected.shape:
            continue
        share, element = difference(name, expected, have[name])
        if share > worst[0]:
            worst = (share, element)
    return worst


def difference(name: str, expected: torch.Tensor, found: torch.Tensor) -> tuple[float, Worst]:
    """RMS of the difference as a share of the RMS of what is expected, and the element that differs most. What is not
    finite is infinitely far, unless both are the same.
    """
    a, b = expected.double(), found.double()
    delta = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(nan=float("inf"))
    place = int(delta.reshape(-1).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), delta.shape))
    scale = float(a[a.isfinite()].pow(2).mean().sqrt()) if bool(a.isfinite().any()) else 1.0
    share = float(delta.pow(2).mean().sqrt()) / (scale or 1.0)
    return share, Worst(name, index, float(a[index]), float(b[index]))


def _step_inputs(case: PassCase, graph: Graph, groups: tuple[KVCacheGroup, ...], inputs: Tensors) -> dict[str, Any]:
    """Inputs that the pass has added, of a step that computes all tokens of one sequence."""
    if set(graph.input_names) <= set(inputs):
        return {}
    tokens = next(
        inputs[str(v.node.attrs["name"])].shape[v.type.shape.index(T)]
        for v in graph.inputs
        if T in v.type.shape and v.node.attrs["name"] in inputs
    )
    simulated = SimulatedSteps([[0] * tokens], groups, case.limits, case.vocabulary, all_rows=True)
    return {**simulated.step([Part("", "", 0, 0, tokens)]).values, **simulated.caches()}


def reproduce(folder: Path) -> int:
    """Run the reproducer in `folder` and say what came out: 1 while the fault is there, else 0."""
    from safetensors.torch import load_file

    case = msgspec.json.decode((folder / PASS).read_bytes(), type=PassCase)
    graph = parse_graph((folder / GRAPH).read_text(encoding="utf-8"))
    share, worst = compare(case, graph, load_file(folder / INPUTS), load_file(folder / WEIGHTS))
    print(f"pass {case.name}: outputs differ by {share:.2e} of their RMS, at most {case.tolerance:.2e} is no fault")
    if worst is not None:
        at = ", ".join(map(str, worst.index))
        print(f"{worst.name}[{at}] is {worst.found:.9g} after the pass, {worst.expected:.9g} before it")
    print("FAULT" if share > case.tolerance else "fixed")
    return int(share > case.tolerance)
