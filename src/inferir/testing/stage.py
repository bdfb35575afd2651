"""Where in the pipeline a pass runs, and graphs as they are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import msgspec

from inferir.ir.contract.symbols import Limits
from inferir.ir.errors import PassError
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.parser import parse_graph
from inferir.passes.context import Pass, PassContext, PassOptions
from inferir.passes.manager import run_passes
from inferir.passes.pipeline import build_phases, build_pipeline, pass_names
from inferir.passes.plugin_passes import PHASES, AddedPass

OPTIONS = PassOptions(
    opt_level=2,
    limits=Limits(max_model_len=16, max_tokens=8, max_seqs=2, max_rows=2, block_size=4),
    features=frozenset({"avx512vnni"}),
)
"""Small limits, so that two sequences fill several blocks of their caches; all that a target may have."""
KERNEL_OPTIONS = dataclasses.replace(
    OPTIONS, limits=msgspec.structs.replace(OPTIONS.limits, block_size=16, max_model_len=48)
)
"""Of pipelines whose regions become kernels: blocks as large as those of attention on CPUs."""


@dataclass(frozen=True)
class Stage:
    """A graph in front of pass `position` of the pipeline, and what the passes before it found out."""

    position: int
    graph: Graph
    context: PassContext


def copy_of(context: PassContext) -> PassContext:
    """A context of its own with the same contents."""
    return PassContext(list(context.refusals), dict(context.transforms), context.kv, set(context.residents))


def make(step: Pass | AddedPass, options: PassOptions, context: PassContext) -> Pass:
    """The pass with this context, in whichever way it takes one."""
    if isinstance(step, AddedPass):
        return step.make(options, context)
    fields = getattr(step, "__dataclass_fields__", {})
    held = {name: context for name in fields if isinstance(getattr(step, name), PassContext)}
    made: Any = step
    return cast(Pass, dataclasses.replace(made, **held) if held else made)


def positions_of(step: Pass | AddedPass, phase: str | None, options: PassOptions) -> list[int]:
    """Where the pass runs: wherever the pipeline has one of its name; else at the end of `phase`, or of the first phase
    after which all that it requires is ensured. Raises `PassError` for an unknown phase or property.
    """
    phases = build_phases(options, PassContext())
    made = make(step, options, PassContext())
    names = [p.name for passes in phases.values() for p in passes]
    if phase is None and isinstance(step, AddedPass) and made.name not in names:
        phase = step.phase
    if phase is None and made.name in names:  # one that is installed as well as given runs where it is installed
        return [i for i, name in enumerate(names) if name == made.name]
    if phase is not None and phase not in PHASES:
        raise PassError(f"there is no phase {phase!r}; phases are {', '.join(PHASES)}")
    held: set[str] = set()
    count = 0
    for name, passes in phases.items():
        count += len(passes)
        held |= {e for p in passes for e in p.ensures}
        if name == phase or (phase is None and held >= made.requires):
            return [count]
    missing = sorted(made.requires - held)
    raise PassError(f"{made.name} requires a graph that is {missing[0]}, which no pass ensures")


def pass_named(name: str, options: PassOptions) -> Pass:
    """The pipeline's pass of that name. Raises `PassError` for an unknown one."""
    found = [p for p in build_pipeline(options, PassContext()) if p.name == name]
    if not found:
        raise PassError(f"there is no pass named {name!r}; passes are {', '.join(pass_names())}")
    return found[0]


def ensured_before(position: int, options: PassOptions) -> frozenset[str]:
    """Properties of a graph in front of a position of the pipeline."""
    passes = build_pipeline(options, PassContext())[:position]
    return frozenset(e for p in passes for e in p.ensures)


def stage(graph: Graph, position: int, options: PassOptions) -> Stage:
    """A captured graph as it is in front of a position. Raises `PassError` for one that a pass cannot handle."""
    context = PassContext()
    made, _ = run_passes(graph, build_pipeline(options, context)[:position], check=False)
    return Stage(position, made, context)


@lru_cache(maxsize=32)
def stages(text: str, options: PassOptions) -> Mapping[int, Stage]:
    """Every stage of a captured graph, given as IR text: by position, the last behind all passes."""
    graph, context = parse_graph(text), PassContext()
    passes = build_pipeline(options, context)
    out = {0: Stage(0, graph, PassContext())}
    for i, step in enumerate(passes):
        graph = step.run(graph)
        out[i + 1] = Stage(i + 1, graph, copy_of(context))
    return out
