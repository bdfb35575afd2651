"""What can be asked of a graph as a whole: who needs whom, what lies between, and for how long a value is needed.

Reachability and dominance are networkx's. Three things stay with whoever asks, because networkx would make the passes
noticeably slower or say less: the order of a graph's nodes (`graph.topological`, done for every graph that is made),
whether groups of nodes stay acyclic while they grow (bit sets in `passes.fuse.grouping`: two integer operations per
question, thousands of questions), and facts that flow once through nodes in order (what depends on weights alone).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import networkx as nx

from inferir.ir.graph.graph import Graph, Node, Value


def operand_dag(graph: Graph, follows: Callable[[Value], bool] = lambda value: True) -> nx.DiGraph:
    """The nodes of `graph`, and an edge from every node to the makers of its operands that `follows` accepts."""
    dag = nx.DiGraph()
    dag.add_nodes_from(graph.nodes)
    for node in graph.nodes:
        dag.add_edges_from((node, operand.node) for operand in node.operands if follows(operand))
    return dag


def needed(dag: nx.DiGraph, by: Iterable[Node], stops: Container[Node] = ()) -> set[Node]:
    """`by` and everything that it needs, not looking beyond `stops`."""
    view = nx.subgraph_view(dag, filter_edge=lambda user, maker: user not in stops)
    return {node for layer in nx.bfs_layers(view, list(by)) for node in layer}


def dominators(dag: nx.DiGraph, top: Node, node: Node) -> list[Node]:
    """The nodes that every path from `top` to what it needs, `node`, goes through: from `top` to `node`, both included;
    empty if there is no path.
    """
    above = nx.immediate_dominators(dag, top)
    if node not in above and node is not top:
        return []
    chain = [node]
    while chain[-1] is not top:
        chain.append(above[chain[-1]])
    return chain[::-1]


def last_uses(nodes: Iterable[Node]) -> dict[Value, int]:
    """For every value that one of `nodes` reads, the index of the last that does."""
    return {operand: i for i, node in enumerate(nodes) for operand in node.operands}
