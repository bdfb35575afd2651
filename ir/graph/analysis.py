"""Graph analyses on top of networkx."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx

from inferir.ir.graph.graph import Graph, Node


def to_networkx(graph: Graph) -> nx.DiGraph:
    """A directed graph with the nodes of `graph` and an edge from every producer to its users."""
    out = nx.DiGraph()
    out.add_nodes_from(graph.nodes)
    for node in graph.nodes:
        out.add_edges_from((operand.node, node) for operand in node.operands)
    return out


def is_convex(dag: nx.DiGraph, group: Iterable[Node]) -> bool:
    """True if no path leaves the group and comes back, so that the group can run as one kernel."""
    inside = set(group)
    frontier = {s for n in inside for s in dag.successors(n) if s not in inside}
    seen = set(frontier)
    while frontier:
        step = {s for n in frontier for s in dag.successors(n)}
        if step & inside:
            return False
        frontier = step - seen
        seen |= frontier
    return True


def liveness(graph: Graph) -> dict[Node, int]:
    """Index in `graph.nodes` of the last node that uses any result of a node; outputs live to the end."""
    last = {node: i for i, node in enumerate(graph.nodes)}
    for i, node in enumerate(graph.nodes):
        for operand in node.operands:
            last[operand.node] = max(last[operand.node], i)
    for value in graph.outputs:
        last[value.node] = len(graph.nodes)
    return last
