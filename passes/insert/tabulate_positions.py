"""tabulate-positions: what depends on positions alone becomes a table with a row per position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from inferir.ir.graph.dims import T
from inferir.ir.graph.graph import Builder, Graph, Value, make_node, topological
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import Rebuilder
from inferir.passes.context import POSITIONS_TABULATED, RAGGED, Pass, has_tokens


@dataclass(frozen=True)
class TabulatePositions(Pass):
    """Every maximal computation from `positions`, weights and constants becomes rows gathered from a table over
    positions 0 … max_model_len - 1. The table stays in the graph as a computation on weights alone, to be folded
    later.

    Covers every rotary variant whose angles depend on the position only. After `ragged-tokens` a row depends on its own
    token only, so the table's row p is what a token at position p would compute.
    """

    max_model_len: int

    name = "tabulate-positions"
    why = "sines and cosines are read, not computed, in a step; every rotary variant becomes a table"
    requires = frozenset({RAGGED})
    ensures = frozenset({POSITIONS_TABULATED})
    idempotent = False

    def run(self, graph: Graph) -> Graph:
        positions = next((v for v in graph.inputs if v.node.attrs["name"] == "positions"), None)
        if positions is None:
            return graph
        depends = _depends_only_on(graph, positions)
        wanted = _frontier(graph, depends, positions)
        if not wanted:
            return graph
        tables = _Tables(positions, depends, self.max_model_len)
        env: dict[Value, Value] = {}
        for value in wanted:
            b = Builder(value.node.loc)
            table = tables.of(value)
            if table.type.rank == 2:
                env[value] = b.op("tensor.embedding", table, positions)
            else:
                env[value] = b.op("tensor.gather_rows", table, positions)
        return Rebuilder(graph, env).run(lambda node, operands: None).graph_with()


def _depends_only_on(graph: Graph, positions: Value) -> set[Value]:
    """Values computed from `positions` and static sources, `positions` included."""
    static: set[Value] = set()
    inside: set[Value] = {positions}
    for node in graph.nodes:
        if node.op == "core.input" or len(node.results) != 1:
            continue
        value = node.result
        if opdef(node.op).source or (all(v in static for v in node.operands) and not has_tokens(value.type.shape)):
            static.add(value)
        elif (
            node.operands
            and all(v in static or v in inside for v in node.operands)
            and any(v in inside for v in node.operands)
        ):
            inside.add(value)
    return inside


def _frontier(graph: Graph, depends: set[Value], positions: Value) -> list[Value]:
    """Values to tabulate: used outside, seen through views (so that layers share a table), not yet plain lookups."""
    users = graph.users()
    outputs = set(graph.outputs)
    found: dict[Value, None] = {}
    for node in graph.nodes:
        for value in node.results:
            if value not in depends or (value not in outputs and all(set(u.results) <= depends for u in users[value])):
                continue
            while value.op == "tensor.view":
                value = value.node.operands[0]
            lookup = (
                opdef(value.op).lookup
                and value.node.operands[1] is positions
                and value.node.operands[0].op == "core.weight"
            )
            if value is not positions and not lookup:
                found[value] = None
    return list(found)


class _Tables:
    """Copies of position computations with T positions replaced by all `length` of them."""

    def __init__(self, positions: Value, depends: set[Value], length: int) -> None:
        self.length = length
        self.depends = depends
        every = Builder(positions.node.loc).op("tensor.arange", stop=length, dtype=positions.type.dtype)
        self.copies: dict[Value, Value] = {positions: every}

    def of(self, value: Value) -> Value:
        for node in topological([], [value]):
            result = node.results[0]
            if result in self.depends and result not in self.copies:
                operands = tuple(self.copies.get(v, v) for v in node.operands)
                attrs = {k: self._sized(v) for k, v in node.attrs.items()}
                self.copies[result] = make_node(node.op, operands, attrs, node.loc).result
        return self.copies[value]

    def _sized(self, attr: Any) -> Any:
        if isinstance(attr, sympy.Expr):
            return attr.subs(T, self.length)
        if isinstance(attr, tuple):
            return tuple(self._sized(a) for a in attr)
        return attr
