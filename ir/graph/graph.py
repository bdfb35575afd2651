"""The graph: immutable nodes in SSA form.

A `Node` applies an op to operand `Value`s and has attributes, result types and a provenance. Nodes are never changed; a
rewrite builds new ones. A `Graph` is only its inputs and outputs: its nodes are whatever the outputs depend on, in
topological order. Graphs nest: a `kernel.region` node carries its body as the attribute `body`.

Sources (ops without operands): `core.input` (run-time operand), `core.weight` (by name, the tensor lives elsewhere),
`core.scalar` (a rank-0 number that takes the element type of what it meets), `core.constant` (a small literal tensor).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from inferir.ir.errors import IRError
from inferir.ir.graph.attrs import Attrs, AttrValue
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.registry import infer_types, opdef
from inferir.ir.graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a node came from: the module path in the source model and the source op. Ignored by hashes."""

    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.source}" if self.source else self.module

    @staticmethod
    def join(parts: Iterable[Provenance]) -> Provenance:
        """The common module path and the joined source ops of a fused group."""
        items = [p for p in parts if p.module or p.source]
        if not items:
            return Provenance()
        paths = [p.module.split(".") for p in items if p.module]
        common: list[str] = []
        for level in zip(*paths, strict=False):
            if len(set(level)) != 1:
                break
            common.append(level[0])
        sources = list(dict.fromkeys(p.source for p in items if p.source))
        return Provenance(".".join(common), "+".join(sources[:6]))


NOWHERE = Provenance()


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One op application. Compared by identity; see `structural_hash` for comparison by content."""

    op: str
    operands: tuple[Value, ...]
    attrs: Attrs
    types: tuple[TensorType, ...]
    loc: Provenance = NOWHERE
    results: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(Value(self, i) for i in range(len(self.types))))

    @property
    def result(self) -> Value:
        """The only result. Raises `IRError` if there are several."""
        if len(self.results) != 1:
            raise IRError(f"{self.op} has {len(self.results)} results, expected one")
        return self.results[0]

    def __repr__(self) -> str:
        return f"<{self.op} {', '.join(map(str, self.types))}>"


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """Result number `index` of `node`."""

    node: Node
    index: int

    @property
    def type(self) -> TensorType:
        return self.node.types[self.index]

    @property
    def op(self) -> str:
        return self.node.op

    def __repr__(self) -> str:
        return f"<value {self.index} of {self.node.op}: {self.type}>"


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs (`core.input` results, in calling order) and named outputs.

    Raises `IRError` if an output depends on a `core.input` that is not listed.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...] = ()
    name: str = "main"
    nodes: tuple[Node, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.output_names:
            object.__setattr__(self, "output_names", tuple(f"out{i}" for i in range(len(self.outputs))))
        if len(self.output_names) != len(self.outputs):
            raise IRError(f"graph {self.name}: {len(self.outputs)} outputs but {len(self.output_names)} names")
        object.__setattr__(self, "nodes", tuple(topological(self.inputs, self.outputs)))
        listed = {id(v.node) for v in self.inputs}
        for node in self.nodes:
            if node.op == "core.input" and id(node) not in listed:
                raise IRError(f"graph {self.name}: input {node.attrs['name']!r} is used but not listed")

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(str(v.node.attrs["name"]) for v in self.inputs)

    def output(self, name: str) -> Value:
        return self.outputs[self.output_names.index(name)]

    def weights(self) -> dict[str, Value]:
        """`core.weight` values by name, in order of first use (bodies of regions hold none)."""
        return {str(n.attrs["name"]): n.result for n in self.nodes if n.op == "core.weight"}

    def users(self) -> dict[Value, list[Node]]:
        """Users of every value (a node appears once per operand use); graph outputs do not count."""
        out: dict[Value, list[Node]] = {r: [] for n in self.nodes for r in n.results}
        for node in self.nodes:
            for operand in node.operands:
                out[operand].append(node)
        return out

    def structural_hash(self) -> str:
        """A hex digest of everything but names of the graph and provenance."""
        return hashlib.sha256(structural_text(self).encode()).hexdigest()


def topological(inputs: Iterable[Value], outputs: Iterable[Value]) -> list[Node]:
    """Nodes that `outputs` depend on, operands first, `inputs` first of all. Iterative: graphs may be deep."""
    order: list[Node] = []
    seen: set[int] = set()
    for value in inputs:
        if id(value.node) not in seen:
            seen.add(id(value.node))
            order.append(value.node)
    for root in outputs:
        stack: list[tuple[Node, int]] = [(root.node, 0)]
        while stack:
            node, next_operand = stack.pop()
            if next_operand == 0:
                if id(node) in seen:
                    continue
            while next_operand < len(node.operands) and id(node.operands[next_operand].node) in seen:
                next_operand += 1
            if next_operand < len(node.operands):
                stack.append((node, next_operand + 1))
                stack.append((node.operands[next_operand].node, 0))
            elif id(node) not in seen:
                seen.add(id(node))
                order.append(node)
    return order


def attr_text(value: AttrValue) -> str:
    """Canonical text of an attribute value (bodies of regions by their own structural text)."""
    if isinstance(value, Graph):
        return "{" + structural_text(value) + "}"
    if isinstance(value, DType):
        return value.value
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "none"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(attr_text(v) for v in value) + ")"
    return str(value).replace(" ", "")


def structural_text(graph: Graph) -> str:
    """Text that is equal exactly for structurally equal graphs: SSA numbers instead of names, no provenance."""
    number: dict[Value, str] = {}
    lines: list[str] = []
    for i, node in enumerate(graph.nodes):
        for result in node.results:
            number[result] = f"%{i}.{result.index}" if len(node.results) > 1 else f"%{i}"
        attrs = ", ".join(f"{k}={attr_text(v)}" for k, v in node.attrs.items())
        args = ", ".join(number[v] for v in node.operands)
        lines.append(f"%{i} = {node.op}({args}) {{{attrs}}} : {', '.join(map(str, node.types))}")
    inputs = ", ".join(number[v] for v in graph.inputs)
    outputs = ", ".join(f"{n}={number[v]}" for n, v in zip(graph.output_names, graph.outputs, strict=True))
    return f"({inputs}) -> ({outputs})\n" + "\n".join(lines)


def make_node(name: str, operands: tuple[Value, ...], attrs: Mapping[str, AttrValue], loc: Provenance) -> Node:
    """Build a node with inferred result types and default attributes filled in."""
    op = opdef(name)
    full = Attrs({**op.defaults, **attrs}) if op.defaults else (attrs if isinstance(attrs, Attrs) else Attrs(attrs))
    return Node(name, operands, full, infer_types(op, [v.type for v in operands], full), loc)


class Builder:
    """Creates nodes with result types inferred by their op definition.

    `Builder(loc)` gives every node that provenance unless `op(..., loc=…)` says otherwise.
    """

    def __init__(self, loc: Provenance = NOWHERE) -> None:
        self.loc = loc

    def input(self, name: str, type: TensorType, loc: Provenance | None = None) -> Value:
        return Node("core.input", (), Attrs({"name": name}), (type,), loc or self.loc).result

    def weight(self, name: str, type: TensorType, loc: Provenance | None = None) -> Value:
        return Node("core.weight", (), Attrs({"name": name}), (type,), loc or self.loc).result

    def scalar(self, value: float | int | bool, loc: Provenance | None = None) -> Value:
        """A weak rank-0 number: it takes the element type of the other operand."""
        dtype = DType.BOOL if isinstance(value, bool) else DType.I64 if isinstance(value, int) else DType.F64
        return Node("core.scalar", (), Attrs({"value": value}), (TensorType((), dtype),), loc or self.loc).result

    def op(self, name: str, *operands: Value, loc: Provenance | None = None, **attrs: AttrValue) -> Value:
        """Apply a one-result op."""
        return self.node(name, operands, attrs, loc).result

    def node(
        self, name: str, operands: Iterable[Value], attrs: Mapping[str, AttrValue], loc: Provenance | None = None
    ) -> Node:
        """Apply an op. Raises `IRError` if operands or attributes do not fit its definition."""
        return make_node(name, tuple(operands), attrs, loc or self.loc)


def rebuild(node: Node, operands: tuple[Value, ...]) -> Node:
    """`node` with other operands (result types inferred anew); the same node if nothing changed."""
    if all(a is b for a, b in zip(node.operands, operands, strict=True)):
        return node
    return make_node(node.op, operands, node.attrs, node.loc)
