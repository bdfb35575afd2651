"""Rebuilding a graph node by node, for passes that change inputs or outputs as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy

from inferir.ir.graph.graph import Graph, Node, Value, rebuild

Visit = Callable[[Node, tuple[Value, ...]], Value | tuple[Value, ...] | None]


class Rebuilder:
    """Maps the values of an old graph to new ones, operands first.

    `env` may be seeded with replacements (for instance of inputs) before `run`. `visit(node, new operands)` returns the
    new result(s), or None to keep the op.
    """

    def __init__(self, graph: Graph, env: Mapping[Value, Value] | None = None) -> None:
        self.graph = graph
        self.env: dict[Value, Value] = dict(env or {})

    def run(self, visit: Visit) -> Rebuilder:
        env = self.env
        for node in self.graph.nodes:
            if node.results[0] in env:
                continue
            if node.op == "core.input":
                env[node.results[0]] = node.results[0]
                continue
            operands = tuple(env[v] for v in node.operands)
            out = visit(node, operands)
            if out is None:
                out = rebuild(node, operands).results
            elif isinstance(out, Value):
                out = (out,)
            for old, new in zip(node.results, out, strict=True):
                env[old] = new
        return self

    def graph_with(
        self, extra_inputs: tuple[Value, ...] = (), extra_outputs: Mapping[str, Value] | None = None
    ) -> Graph:
        """The new graph: the old inputs and outputs mapped, then the extra ones."""
        extra = dict(extra_outputs or {})
        return Graph(
            (*(self.env[v] for v in self.graph.inputs), *extra_inputs),
            (*(self.env[v] for v in self.graph.outputs), *extra.values()),
            (*self.graph.output_names, *extra),
            self.graph.name,
        )


def rebuilt(graph: Graph, visit: Visit) -> Graph:
    """`graph` with every node passed through `visit`; the same graph if nothing changed."""
    walk = Rebuilder(graph).run(visit)
    if all(walk.env[v] is v for v in graph.outputs):
        return graph
    return walk.graph_with()


def with_symbol(attr: Any, old: sympy.Symbol, new: sympy.Symbol) -> Any:
    """An attribute with the dimension `new` in place of `old`."""
    if isinstance(attr, sympy.Expr):
        return attr.subs(old, new)
    if isinstance(attr, tuple):
        return tuple(with_symbol(a, old, new) for a in attr)
    return attr
