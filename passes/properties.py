"""What passes promise about a graph, as checks: each returns None, or what contradicts it."""

from __future__ import annotations

from collections.abc import Callable

from inferir.ir.graph.dims import R, T
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.registry import opdef
from inferir.passes.canonicalise.fold_weights import static_nodes
from inferir.passes.context import (
    PACKED,
    PAGED,
    POSITIONS_TABULATED,
    RAGGED,
    REGIONS,
    ROWS_GATHERED,
    SAMPLED,
    WEIGHTS_FOLDED,
    has_tokens,
)


def _ragged(graph: Graph) -> str | None:
    for node in graph.nodes:
        for t in node.types:
            if has_tokens(t.shape) and (t.shape[0] != T or has_tokens(t.shape[1:])):
                return f"{node.op} has type {t}"
    return None


def _positions_tabulated(graph: Graph) -> str | None:
    for node in graph.nodes:
        if not opdef(node.op).lookup:
            for value in node.operands:
                if value.op == "core.input" and value.node.attrs["name"] == "positions":
                    return f"{node.op} computes with positions"
    return None


def _without(*ops: str) -> Callable[[Graph], str | None]:
    def check(graph: Graph) -> str | None:
        return next((f"there is still a {n.op}" for n in graph.nodes if n.op in ops), None)

    return check


def _rows_gathered(graph: Graph) -> str | None:
    logits = graph.output("logits").type
    return None if logits.shape[0] == R else f"logits are {logits}"


def _sampled(graph: Graph) -> str | None:
    return None if "tokens" in graph.output_names else "there is no output 'tokens'"


def _weights_folded(graph: Graph) -> str | None:
    for node in static_nodes(graph):
        if not opdef(node.op).source and node.op != "kernel.region":
            return f"{node.op} depends on weights alone"
    return None


def _regions(graph: Graph) -> str | None:
    outside = (n.op for n in graph.nodes if n.op != "kernel.region" and not opdef(n.op).source)
    return next((f"{op} is in no region" for op in outside), None)


CHECKS: dict[str, Callable[[Graph], str | None]] = {
    RAGGED: _ragged,
    POSITIONS_TABULATED: _positions_tabulated,
    PAGED: _without("attn.attention"),
    ROWS_GATHERED: _rows_gathered,
    SAMPLED: _sampled,
    PACKED: _without("tensor.linear"),
    WEIGHTS_FOLDED: _weights_folded,
    REGIONS: _regions,
}
