"""The kernel graph of an artifact for people: sections in order (before the layers, each layer, after them), the
regions of each and the ops inside, and how values flow between regions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from inferir.codegen.library import region_digest
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.registry import opdef

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class RegionBox:
    """A region: what it is called, which kernels compute it, its fused ops, and the weights it reads.

    sources: indices, within the section, of the regions whose values it reads; outside: it also reads a value from
    another section.
    """

    name: str
    anchor: str
    digest: str
    kernels: tuple[str, ...]
    module: str
    ops: tuple[str, ...]
    weights: tuple[str, ...]
    results: tuple[str, ...]
    sources: tuple[int, ...]
    outside: bool


@dataclass(frozen=True)
class Section:
    """Consecutive regions of one layer (`layer` None: of no layer)."""

    layer: int | None
    regions: tuple[RegionBox, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for sections that do the same work."""
        return (self.layer is None, *((r.digest, r.sources, r.outside) for r in self.regions))


@dataclass(frozen=True)
class Run:
    """Sections that follow one another and do the same work; the first stands for all."""

    sections: tuple[Section, ...]

    @property
    def title(self) -> str:
        first, last = self.sections[0].layer, self.sections[-1].layer
        if first is None:
            return ", ".join(dict.fromkeys(r.name for r in self.sections[0].regions))
        if len(self.sections) == 1:
            return f"layer {first}"
        return f"layers {first}–{last}: {len(self.sections)} times the same"


def layer_of(module: str) -> int | None:
    found = _LAYER.search(module)
    return int(found[1]) if found else None


def read_sections(text: str, kernels: Mapping[str, tuple[str, ...]]) -> list[Run]:
    """Sections of the kernel graph in the IR text, equal neighbours joined. `kernels`: kernel names by region digest.

    Raises `ParseError`.
    """
    graph = parse_graph(text)
    regions = [n for n in graph.nodes if n.op == "kernel.region"]
    sections = []
    for layer, group in itertools.groupby(regions, key=lambda n: layer_of(n.loc.module)):
        place = {node: i for i, node in enumerate(group)}
        sections.append(Section(layer, tuple(_box(node, place, kernels) for node in place)))
    runs: list[list[Section]] = []
    for section in sections:
        if runs and section.layer is not None and runs[-1][0].signature == section.signature:
            runs[-1].append(section)
        else:
            runs.append([section])
    return [Run(tuple(r)) for r in runs]


def _box(node: Node, place: Mapping[Node, int], kernels: Mapping[str, tuple[str, ...]]) -> RegionBox:
    body: Graph = node.attrs["body"]
    digest = region_digest(node)
    producers = [v.node for v in node.operands if v.op == "kernel.region"]
    return RegionBox(
        name=str(node.attrs["name"]),
        anchor=str(node.attrs["anchor"]),
        digest=digest,
        kernels=kernels.get(digest, ()),
        module=node.loc.module,
        ops=_ops(body),
        weights=tuple(str(v.node.attrs["name"]) for v in node.operands if v.op == "core.weight"),
        results=tuple(str(t) for t in node.types),
        sources=tuple(sorted({place[p] for p in producers if p in place})),
        outside=any(p not in place for p in producers),
    )


def _ops(body: Graph) -> tuple[str, ...]:
    """The ops that compute, in order, repeated ones counted."""
    defs = ((n.op, opdef(n.op)) for n in body.nodes)
    names = [name for name, op in defs if not (op.source or op.view or op.quiet)]
    counted = ((name, len(list(group))) for name, group in itertools.groupby(names))
    return tuple(f"{op} ×{count}" if count > 1 else op for op, count in counted)
