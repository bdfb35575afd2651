"""gather-logit-rows: logits are computed for the rows that were asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import networkx as nx

from inferir.ir.errors import PassError
from inferir.ir.graph.dims import R, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value, make_node
from inferir.ir.graph.registry import opdef
from inferir.passes.context import PAGED, ROWS_GATHERED, has_tokens
from inferir.passes.insert.step_input import step_input
from inferir.passes.rebuild import with_symbol


@dataclass(frozen=True)
class GatherLogitRows:
    """Adds the input `rows` [R]: output `logits` becomes f32 [R, V], row i for token rows[i].

    The gather moves up from the logits as far as every op works row by row and only feeds the logits. With
    `through_layer` that is up to the last attention. Otherwise it is the highest single value behind all products but
    the last, which all tokens' data passes through: the residual sum before the last norm.
    """

    through_layer: bool = False

    name: ClassVar[str] = "gather-logit-rows"
    why: ClassVar[str] = "a prefill step wants one row of logits, and the last matrix is the largest"
    requires: ClassVar[frozenset[str]] = frozenset({PAGED})
    ensures: ClassVar[frozenset[str]] = frozenset({ROWS_GATHERED})

    def run(self, graph: Graph) -> Graph:
        if "logits" not in graph.output_names:
            raise PassError(f"{self.name}: the graph has no output named 'logits'")
        logits = graph.output("logits")
        if logits.type.rank != 2 or logits.type.shape[0] != T:
            raise PassError(f"{self.name}: logits are {logits.type}, expected [T, V]")
        rows = step_input("rows")
        stops = self._needed_elsewhere(graph)
        if not self.through_layer:
            stops = stops | {residual_sum(graph, logits).node}
        env: dict[Value, Value] = {}
        for node in _tail(logits, stops):
            for value in node.results:
                if _is_end(node) or node in stops or len(node.results) != 1:
                    env[value] = Builder(node.loc).op("tensor.gather_rows", value, rows)
                else:
                    operands = tuple(env[v] if has_tokens(v.type.shape) else v for v in node.operands)
                    env[value] = make_node(
                        node.op, operands, {k: with_symbol(a, T, R) for k, a in node.attrs.items()}, node.loc
                    ).result
        out = env[logits]
        if out.type.dtype is not DType.F32:
            out = Builder(logits.node.loc).op("tensor.cast", out, dtype=DType.F32)
        outputs = tuple(
            out if name == "logits" else v for name, v in zip(graph.output_names, graph.outputs, strict=True)
        )
        return Graph((*graph.inputs, rows), outputs, graph.output_names, graph.name)

    @staticmethod
    def _needed_elsewhere(graph: Graph) -> set[Node]:
        """Nodes that other outputs (the caches) depend on."""
        stack = [v.node for name, v in zip(graph.output_names, graph.outputs, strict=True) if name != "logits"]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(v.node for v in node.operands)
        return seen


def _is_end(node: Node) -> bool:
    """Whether rows of its results cannot be computed from the same rows of its operands."""
    return node.op == "core.input" or opdef(node.op).mixes_rows


def _tail(logits: Value, stops: set[Node]) -> list[Node]:
    """Nodes with token rows between the logits and the nodes to gather at, both included, operands first."""
    found: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(logits.node, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            found.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            if not _is_end(node) and node not in stops:
                stack.extend((v.node, False) for v in node.operands if has_tokens(v.type.shape))
    return found


def residual_sum(graph: Graph, logits: Value) -> Value:
    """The highest value that dominates the logits with at most one matrix product in between."""
    dag = nx.DiGraph()
    for node in graph.nodes:
        dag.add_edges_from((node, v.node) for v in node.operands if has_tokens(v.type.shape))
    top = nx.immediate_dominators(dag, logits.node) if logits.node in dag else {}
    sources = [n for n in top if n.op == "core.input" and n.attrs["name"] == "ids"]
    if not sources:
        return logits
    chain = [sources[0]]
    while chain[-1] is not logits.node:
        chain.append(top[chain[-1]])
    best, products = logits, 0
    for node in reversed(chain[:-1]):
        between = _tail(best, {node})
        products += sum(opdef(n.op).contraction for n in between if n is not node)
        if products > 1 or node.op == "core.input":
            break
        best = node.result
    return best
