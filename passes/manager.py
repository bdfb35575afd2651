"""The driver: runs passes in order, checks graphs and properties in between, and shows the graph after every pass."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.errors import InferirError, IRError, PassError, VerifyError
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify
from inferir.ir.system.error_report import one_line
from inferir.ir.system.quantities import count, seconds
from inferir.passes.context import Pass, PassContext, PassOptions, Refusal
from inferir.passes.pipeline import build_pipeline, pass_names
from inferir.passes.plugin_passes import origin_of
from inferir.passes.properties import CHECKS
from inferir.passes.step_plan import StepPlan, plan

log = logging.getLogger(__name__)

Print = Callable[[str, Graph], None]


@dataclass(frozen=True)
class PassRecord:
    """One pass that ran: seconds it took, and whether it changed the graph. origin: the distribution and version that
    brought it, "" for one of this system.
    """

    name: str
    seconds: float
    changed: bool
    origin: str = ""


@dataclass(frozen=True)
class PipelineResult:
    """graph: kernel regions over inputs and weights. plan: its calls and buffers. transforms: by weight name, the graph
    (output `value`) that computes a new weight from the checkpoint's. refusals: rewrites considered and not done.
    records: passes in order. kv: groups of layers that share block tables. residents: inputs that are resident
    buffers.
    """

    graph: Graph
    plan: StepPlan
    transforms: Mapping[str, Graph]
    refusals: tuple[Refusal, ...]
    records: tuple[PassRecord, ...]
    kv: tuple[KVCacheGroup, ...]
    residents: frozenset[str] = frozenset()

    @property
    def step_inputs(self) -> dict[str, Value]:
        """The inputs that the host fills, by name: all but the caches."""
        caches = {name for group in self.kv for name, *_ in group.caches()}
        return {n: v for n, v in zip(self.graph.input_names, self.graph.inputs, strict=True) if n not in caches}

    @property
    def sources(self) -> set[str]:
        """The checkpoint weights that are needed, by the graph itself or by weight transforms."""
        direct = {n for n in self.graph.weights() if n not in self.transforms}
        return direct.union(*(set(r.weights()) for r in self.transforms.values()))


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    *,
    print_after: Print | None = None,
    dump_dir: Path | None = None,
    check: bool = True,
) -> tuple[Graph, list[PassRecord]]:
    """Run `passes` in order. The verifier runs on the first graph and after every pass that changed something.

    print_after(name, graph) is called after every pass; dump_dir receives `NN-name.txt`. Raises `PassError` if a pass
    requires a property that none before it ensured, or a pass breaks the graph or its promise.
    """
    if check:
        verify(graph)
    held: set[str] = set()
    records: list[PassRecord] = []
    _dump(dump_dir, 0, "input", graph)
    for number, step in enumerate(passes, 1):
        missing = sorted(step.requires - held)
        if missing:
            raise PassError(f"{step.name} requires a graph that is {missing[0]}, which no pass before it ensures")
        start = time.perf_counter()
        origin = origin_of(step.name)
        after = _run(step, graph, origin)
        records.append(PassRecord(step.name, time.perf_counter() - start, after is not graph, origin))
        outcome = "the graph stays" if after is graph else f"{len(graph.nodes)} to {len(after.nodes)} ops"
        log.debug("%s: %s, %s", step.name, seconds(records[-1].seconds), outcome)
        if check:
            _check(step, graph, after)
        graph = after
        held |= step.ensures
        if print_after is not None:
            print_after(step.name, graph)
        _dump(dump_dir, number, step.name, graph)
    return graph, records


def _run(step: Pass, graph: Graph, origin: str) -> Graph:
    """Raises `PassError` for whatever a pass of another distribution raises that names no fault by itself."""
    if not origin:
        return step.run(graph)
    try:
        return step.run(graph)
    except InferirError:
        raise
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise PassError(f"the pass {step.name!r} of {origin} fails: {reason}") from error


def _check(step: Pass, before: Graph, after: Graph) -> None:
    if after is not before:
        try:
            verify(after)
        except VerifyError as error:
            raise PassError(f"{step.name} left a broken graph: {error}") from error
    for name in sorted(step.ensures):
        found = CHECKS[name](after)
        if found is not None:
            raise PassError(f"{step.name} promised a graph that is {name}, but {found}")


def _dump(folder: Path | None, number: int, name: str, graph: Graph) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02d}-{name}.txt").write_text(print_graph(graph) + "\n", encoding="utf-8")


def run_pipeline(
    graph: Graph,
    weight_types: Mapping[str, TensorType] | None,
    options: PassOptions,
    *,
    print_after: Print | None = None,
    dump_dir: Path | None = None,
) -> PipelineResult:
    """Turn a captured graph ((ids [T], positions [T]) -> logits [T, V]) into kernels and a plan.

    weight_types: what the checkpoint holds; every weight of the graph must be there with that type (None: not checked).
    Raises `PassError` naming pass, op and module for a graph that cannot be handled.
    """
    unknown = sorted((options.disabled | options.enabled) - set(pass_names()))
    if unknown:
        raise PassError(f"there is no pass named {unknown[0]!r}; passes are {', '.join(pass_names())}")
    if weight_types is not None:
        _check_weights(graph, weight_types)
    context = PassContext()
    try:
        with _collector_paused():
            passes = build_pipeline(options, context)
            out, records = run_passes(graph, passes, print_after=print_after, dump_dir=dump_dir)
            start = time.perf_counter()
            step = plan(out, options.limits.bounds, context.kv, context.residents)
    except IRError as error:
        raise PassError(str(error)) from error
    records.append(PassRecord("plan", time.perf_counter() - start, False))
    total, refused = seconds(sum(r.seconds for r in records)), count(len(context.refusals), "rewrite")
    log.info("%s in %s: %d kernel calls, %s refused", count(len(records), "step"), total, len(step.ops), refused)
    return PipelineResult(
        out,
        step,
        dict(context.transforms),
        tuple(context.refusals),
        tuple(records),
        context.kv,
        frozenset(context.residents),
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Graphs are many small live objects: collecting cycles among them again and again takes longer than the passes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_weights(graph: Graph, types: Mapping[str, TensorType]) -> None:
    for name, value in graph.weights().items():
        if types.get(name) != value.type:
            held = types.get(name, "missing")
            raise PassError(f"weight {name!r} is {value.type} in the graph and {held} in the checkpoint")
