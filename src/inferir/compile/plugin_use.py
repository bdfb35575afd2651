"""Which entries of other distributions took part in making an artifact, and which of them serving needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from inferir.codegen.backends import backend_for
from inferir.codegen.library import BuiltBucket
from inferir.compile.compile_types import Captured
from inferir.frontend.facts import RULES_FILE
from inferir.ir.contract.manifest import PluginRecord
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.plugin_kinds import KINDS, SERVE, kind_named, kinds_of
from inferir.ir.plugin_registry import any_plugins
from inferir.ir.system.quantities import count
from inferir.passes.manager import PassRecord, PipelineResult

PACK = "layout.pack_"

Use = tuple[str, str, str]
"""(kind, name of the entry, what it did)"""


def plugins_used(
    captured: Captured, result: PipelineResult, built: Iterable[BuiltBucket], target: Target
) -> tuple[PluginRecord, ...]:
    """A record for every entry that took part, each once, kinds in the order of their table.

    Part took: a pass that ran, a dialect with an op in a graph or with an import rule that was used, a format of a
    weight, a backend and what it has for the regions, a kernel override, a KV cache kind, and the executor for the
    target.
    """
    if not any_plugins():
        return ()
    uses = [
        *_passes(result.records),
        *_ops(captured, result),
        *_code(result, target),
        *_kernels(built),
        *_kv(result),
        ("executors", target.kind, f"runs kernels for {target.name}"),
    ]
    found: dict[tuple[str, str], PluginRecord] = {}
    for kind, name, detail in uses:
        info = kind_named(kind).load_registry().outside(name)
        if info is not None and (kind, name) not in found:
            found[kind, name] = PluginRecord(
                kind=kind,
                name=name,
                distribution=info.distribution,
                version=info.version,
                serves=kind in kinds_of(SERVE),
                detail=detail,
            )
    order = [kind.name for kind in KINDS]
    return tuple(sorted(found.values(), key=lambda r: (order.index(r.kind), r.name)))


def nodes_of(graph: Graph) -> Iterator[Node]:
    """All nodes, those in the bodies of regions among them."""
    for node in graph.nodes:
        yield node
        body = node.attrs.get("body")
        if isinstance(body, Graph):
            yield from nodes_of(body)


def _passes(records: Iterable[PassRecord]) -> Iterator[Use]:
    for record in records:
        if record.origin:
            yield "passes", record.name, "changed the graph" if record.changed else "changed nothing"


def _ops(captured: Captured, result: PipelineResult) -> Iterator[Use]:
    rules: Mapping[str, str] = msgspec.json.decode(captured.trace[RULES_FILE], type=dict[str, str])
    what: dict[str, list[str]] = {}
    for operator, dialect in rules.items():
        what.setdefault(dialect, []).append(f"imported {operator}")
    graphs = {"captured graph": [captured.graph], "kernels": [result.graph], "weights": [*result.transforms.values()]}
    for place, parts in graphs.items():
        for op in sorted({n.op for graph in parts for n in nodes_of(graph)}):
            what.setdefault(op.partition(".")[0], []).append(f"{op} in the {place}")
    for dialect, done in what.items():
        yield "ops", dialect, ", ".join(done)


def _code(result: PipelineResult, target: Target) -> Iterator[Use]:
    """Formats of weights, the backend, and what belongs to that backend alone: the kinds whose names begin with its."""
    backend = backend_for(target).name
    yield "backends", target.kind, f"made code for {target.name}"
    packed = Counter(n.op.removeprefix(PACK) for graph in result.transforms.values() for n in graph.nodes)
    regions = Counter(n.attrs["anchor"] for n in result.graph.nodes if n.op == "kernel.region")
    ops = {node.op for node in nodes_of(result.graph)}
    for name, times in packed.items():
        yield "formats", name, f"stores {count(times, 'weight')}"
    for what, used in (
        ("formats", {name: f"multiplies with {count(times, 'weight')}" for name, times in packed.items()}),
        ("regions", {anchor: f"lowered {count(times, 'region')}" for anchor, times in regions.items()}),
        ("ops", dict.fromkeys(ops, "wrote the op")),
    ):
        if any(kind.name == f"{backend}_{what}" for kind in KINDS):
            yield from ((f"{backend}_{what}", name, detail) for name, detail in used.items())


def _kernels(built: Iterable[BuiltBucket]) -> Iterator[Use]:
    made: dict[str, dict[str, None]] = {}
    for bucket in built:
        for kernel in bucket.meta.kernels:
            if kernel.made_by:
                made.setdefault(kernel.made_by.partition(" of ")[0], {})[kernel.name] = None
    for name, kernels in made.items():
        yield "kernels", name, f"made {', '.join(kernels)}"


def _kv(result: PipelineResult) -> Iterator[Use]:
    for group in result.kv:
        yield "kv", group.spec.kind, f"cache of {count(len(group.layers), 'layer')}"
        yield "kv", group.spec.reads.kind, f"what tokens of {count(len(group.layers), 'layer')} read"
