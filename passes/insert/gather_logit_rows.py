"""gather-logit-rows: logits are computed for the rows that were asked for."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from inferir.ir.errors import PassError
from inferir.ir.graph.analysis import dominators, needed, operand_dag
from inferir.ir.graph.dims import R, T, with_symbol
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Value, make_node, topological
from inferir.ir.graph.registry import opdef
from inferir.passes.context import PAGED, ROWS_GATHERED, Pass, has_tokens
from inferir.passes.insert.step_input import step_input


@dataclass(frozen=True)
class GatherLogitRows(Pass):
    """Adds the input `rows` [R]: output `logits` becomes f32 [R, V], row i for token rows[i].

    The gather moves up from the logits as far as every op works row by row and only feeds the logits. With
    `through_layer` that is up to the last attention. Otherwise it is the highest single value behind all products but
    the last, which all tokens' data passes through: the residual sum before the last norm.
    """

    through_layer: bool = False

    name = "gather-logit-rows"
    why = "a prefill step wants one row of logits, and the last matrix is the largest"
    requires = frozenset({PAGED})
    ensures = frozenset({ROWS_GATHERED})
    idempotent = False

    def run(self, graph: Graph) -> Graph:
        if "logits" not in graph.output_names:
            raise PassError(f"{self.name}: the graph has no output named 'logits'")
        logits = graph.output("logits")
        if logits.type.rank != 2 or logits.type.shape[0] != T:
            raise PassError(f"{self.name}: logits are {logits.type}, expected [T, V]")
        rows = step_input("rows")
        dag = operand_dag(graph, lambda value: has_tokens(value.type.shape))
        stops = set(topological((), (v for v in graph.outputs if v is not logits)))
        if not self.through_layer:
            stops.add(residual_sum(graph, logits, dag))
        stops |= {n for n in graph.nodes if _is_end(n)}
        tail = needed(dag, [logits.node], stops)
        env: dict[Value, Value] = {}
        for node in graph.nodes:
            if node not in tail:
                continue
            for value in node.results:
                if node in stops or len(node.results) != 1:
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


def _is_end(node: Node) -> bool:
    """Whether rows of its results cannot be computed from the same rows of its operands."""
    return node.op == "core.input" or opdef(node.op).mixes_rows


def residual_sum(graph: Graph, logits: Value, dag: nx.DiGraph) -> Node:
    """What makes the highest value that dominates the logits with at most one matrix product in between. `dag`: who
    needs which token rows.
    """
    ids = next((v.node for v in graph.inputs if v.node.attrs["name"] == "ids"), None)
    best, products = logits.node, 0
    for node in dominators(dag, best, ids)[1:] if ids is not None else []:
        products += sum(opdef(n.op).contraction for n in needed(dag, [best], {node}) if n is not node)
        if products > 1 or node is ids:
            break
        best = node
    return best
