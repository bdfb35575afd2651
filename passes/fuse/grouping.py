"""Groups of nodes that will become regions, kept acyclic: a group may only grow if no path leaves it and comes back.

Reachability between groups is held as bit sets, so that asking about one merge costs two integer operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from inferir.ir.graph.dims import Dim
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import ROWWISE, opdef


@dataclass(frozen=True)
class Uses:
    """What is known about the nodes of a graph before grouping.

    free: nodes that cost nothing and are repeated inside every region that reads them (views, table rows by position).
    base: operand values with free nodes looked through, per node. strict: operand values that must lie in memory as
    they are, because the node reads them by another index than its own row (products, attention, gather tables,
    caches).
    """

    graph: Graph
    free: frozenset[Node]
    base: Mapping[Node, tuple[Value, ...]]
    strict: Mapping[Node, frozenset[Value]]
    readers: Mapping[Value, tuple[Node, ...]]

    @property
    def nodes(self) -> list[Node]:
        """The nodes to be grouped, operands first."""
        return list(self.base)


def strict_operands(node: Node) -> tuple[Value, ...]:
    return node.operands[: opdef(node.op).in_memory]


def row_symbol(node: Node) -> Dim | None:
    """The axis a kernel for this node runs over: the leading axis of its result, or of what a cache write stores."""
    stored = opdef(node.op).stores
    shape = node.types[0].shape if stored is None else node.operands[stored].type.shape
    return shape[0] if shape else None


def find_uses(graph: Graph, free_ops: frozenset[str], share_lookups: bool) -> Uses:
    """Classify nodes. free_ops: ops to repeat besides views; share_lookups: repeat reads of tables by `positions`."""
    pinned = set(graph.outputs) | {v for n in graph.nodes for v in strict_operands(n)}
    free: set[Node] = set()
    for node in graph.nodes:
        op = opdef(node.op)
        if op.source:
            continue
        cheap = op.view or node.op in free_ops or (share_lookups and _is_lookup(node))
        if cheap and len(node.results) == 1 and node.result not in pinned:
            free.add(node)
    base: dict[Node, tuple[Value, ...]] = {}
    readers: dict[Value, dict[Node, None]] = {v: {} for n in graph.nodes for v in n.results}
    for node in graph.nodes:
        if opdef(node.op).source or node in free:
            continue
        seen: dict[Value, None] = {}
        stack = list(reversed(node.operands))
        while stack:
            value = stack.pop()
            if value.node in free:
                stack.extend(reversed(value.node.operands))
            else:
                seen[value] = None
        base[node] = tuple(seen)
        for value in seen:
            readers[value][node] = None
    strict = {n: frozenset(strict_operands(n)) for n in base}
    return Uses(graph, frozenset(free), base, strict, {v: tuple(r) for v, r in readers.items()})


def _is_lookup(node: Node) -> bool:
    if not opdef(node.op).lookup:
        return False
    table, index = node.operands
    return table.op == "core.weight" and index.op == "core.input" and index.node.attrs["name"] == "positions"


@dataclass(eq=False)
class Group:
    """Nodes that become one region. anchor: that of its first op."""

    id: int
    anchor: str
    symbol: Dim | None
    nodes: list[Node]
    strict: set[Value]
    produced: set[Value]


class Grouping:
    """A partition of the nodes of `uses` into groups; starts with every node by itself."""

    def __init__(self, uses: Uses) -> None:
        self.uses = uses
        self.order = {node: i for i, node in enumerate(uses.base)}
        self.of: dict[Node, Group] = {}
        self.groups: dict[int, Group] = {}
        self.above: dict[int, int] = {}
        self.below: dict[int, int] = {}
        for i, (node, operands) in enumerate(uses.base.items()):
            anchor = opdef(node.op).anchor or ROWWISE
            self.of[node] = self.groups[i] = Group(
                i, anchor, row_symbol(node), [node], set(uses.strict[node]), set(node.results)
            )
            above = 0
            for value in operands:
                if value.node in self.of:
                    producer = self.of[value.node].id
                    above |= self.above[producer] | (1 << producer)
            self.above[i] = above
            self.below[i] = 0
            for j in _bits(above):
                self.below[j] |= 1 << i

    def producers(self, node: Node) -> list[Group]:
        """Groups that make operands of `node`, each once."""
        return list(dict.fromkeys(self.of[v.node] for v in self.uses.base[node] if v.node in self.of))

    def depends(self, group: Group, on: Group) -> bool:
        """Whether `group` needs a result of `on`, directly or through other groups."""
        return bool(self.above[group.id] >> on.id & 1)

    def reason_against(self, groups: Iterable[Group]) -> str | None:
        """Why these groups cannot become one, or None."""
        members = list(dict.fromkeys(groups))
        inside = above = below = 0
        for group in members:
            inside |= 1 << group.id
            above |= self.above[group.id]
            below |= self.below[group.id]
        if above & below & ~inside:
            return "another kernel lies between them"
        if any(a.strict & b.produced for a in members for b in members):
            return "it is read whole or by index, not row by row"
        return None

    def merge(self, groups: Iterable[Group]) -> Group:
        """Make one group, with the anchor of the first; the caller has asked `reason_against`."""
        members = list(dict.fromkeys(groups))
        target = members[0]
        inside = above = below = 0
        for group in members:
            inside |= 1 << group.id
            above |= self.above[group.id]
            below |= self.below[group.id]
        above &= ~inside
        below &= ~inside
        bit = 1 << target.id
        for group in members[1:]:
            for node in group.nodes:
                self.of[node] = target
            target.nodes += group.nodes
            target.strict |= group.strict
            target.produced |= group.produced
            del self.groups[group.id], self.above[group.id], self.below[group.id]
        target.nodes.sort(key=self.order.__getitem__)
        self.above[target.id], self.below[target.id] = above, below
        for i in _bits(above):
            self.below[i] = (self.below[i] & ~inside) | below | bit
        for i in _bits(below):
            self.above[i] = (self.above[i] & ~inside) | above | bit
        return target

    def outputs(self, nodes: Iterable[Node]) -> list[Value]:
        """Values of these nodes that are read elsewhere or leave the graph."""
        inside = set(nodes)
        leaving = set(self.uses.graph.outputs)
        return [
            v
            for n in sorted(inside, key=self.order.__getitem__)
            for v in n.results
            if v in leaving or any(r not in inside for r in self.uses.readers[v])
        ]

    def sorted(self) -> list[Group]:
        """Groups in an order that respects their dependencies, otherwise that of the graph."""
        done = 0
        out: list[Group] = []
        waiting = sorted(self.groups.values(), key=lambda g: self.order[g.nodes[-1]])
        while waiting:
            rest = []
            for group in waiting:
                if self.above[group.id] & ~done:
                    rest.append(group)
                else:
                    done |= 1 << group.id
                    out.append(group)
            assert len(rest) < len(waiting), "groups depend on each other in a circle"
            waiting = rest
        return out


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
