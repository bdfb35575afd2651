"""Which part of a graph differs from the graph before a pass: by what its values are, and by what it consists of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inferir.ir.graph.graph import Builder, Graph, Node, Value, attr_text
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.rewrite import Rebuilder

_PROJECTIONS = 4


@dataclass(frozen=True)
class Sketch:
    """What of a tensor is kept to find equal ones: its size, RMS, and projections on random directions."""

    numel: int
    rms: float
    projections: tuple[float, ...]

    @staticmethod
    def of(tensor: Any) -> Sketch | None:
        """None for what is no tensor of numbers."""
        if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
            return None
        flat = tensor.detach().reshape(-1).double()
        directions = torch.randn(_PROJECTIONS, len(flat), generator=torch.Generator().manual_seed(len(flat)))
        projections = tuple((directions.double() @ flat / len(flat) ** 0.5).tolist())
        return Sketch(len(flat), float(flat.pow(2).mean().sqrt()), projections)

    def near(self, other: Sketch, tolerance: float) -> bool:
        """Whether the tensors are probably equal but for differences of `tolerance` times their RMS."""
        if self.numel != other.numel:
            return False
        limit = 4 * tolerance * max(self.rms, other.rms) + 1e-30
        return all(abs(a - b) <= limit for a, b in zip(self.projections, other.projections, strict=True))


Sketches = Mapping[Value, Sketch]


def first_difference(before: Sketches, after: Graph, found: Sketches, tolerance: float) -> Node | None:
    """The first node of `after` from which values that `before` has nothing like lead to an output.

    A pass makes new values on the way to old ones; only those that are followed by no old one count.
    """
    by_size: dict[int, list[Sketch]] = {}
    for sketch in before.values():
        by_size.setdefault(sketch.numel, []).append(sketch)

    def known(value: Value) -> bool:
        sketch = found.get(value)
        return sketch is None or any(sketch.near(s, tolerance) for s in by_size.get(sketch.numel, ()))

    users = after.users()
    bad: set[Node] = set()
    for node in reversed(after.nodes):
        if opdef(node.op).source or all(known(v) for v in node.results):
            continue
        if any(v in after.outputs for v in node.results) or any(u in bad for v in node.results for u in users[v]):
            bad.add(node)
    return next((n for n in after.nodes if n in bad), None)


def only_in(graph: Graph, other: Graph, module: str) -> list[Node]:
    """Nodes of `module`, and of modules in it, that `graph` has more of than `other`; sources do not count."""
    there = Counter(_signature(n) for n in other.nodes)
    out = []
    for node in graph.nodes:
        if opdef(node.op).source or not inside(node, module):
            continue
        if there[_signature(node)] > 0:
            there[_signature(node)] -= 1
        else:
            out.append(node)
    return out


def inside(node: Node, module: str) -> bool:
    """Whether a node belongs to `module`, or to one in it."""
    return not module or node.loc.module == module or node.loc.module.startswith(f"{module}.")


def _signature(node: Node) -> tuple[str, str, str, str]:
    attrs = ", ".join(f"{k}={attr_text(v)}" for k, v in node.attrs.items())
    return node.op, attrs, ", ".join(map(str, node.types)), str(node.loc)


def cut_out(graph: Graph, nodes: Collection[Node], name: str = "part") -> tuple[Graph, dict[str, Value]]:
    """A graph of `nodes` alone, and which value of `graph` each of its inputs stands for. What others read of them, or
    `graph` returns, are its outputs. Weights and numbers are part of it; an input of `graph` keeps its name.
    """
    inside = set(nodes)
    inputs: dict[Value, str] = {}
    for node in graph.nodes:
        if node in inside:
            for value in node.operands:
                if value.node not in inside and value not in inputs:
                    if value.op == "core.input":
                        inputs[value] = str(value.node.attrs["name"])
                    elif not opdef(value.op).source:
                        inputs[value] = f"x{len(inputs)}"
    users = graph.users()
    outputs = [
        v
        for n in graph.nodes
        if n in inside
        for v in n.results
        if v in graph.outputs or any(u not in inside for u in users[v])
    ]
    env = {v: Builder(v.node.loc).input(label, v.type) for v, label in inputs.items()}
    listed = tuple(env.values())
    for value in inputs:  # a node is replaced with all of its results
        for other in value.node.results:
            env.setdefault(other, Builder(other.node.loc).input("unused", other.type))
    whole = Graph(graph.inputs, tuple(outputs), _names(graph, outputs), name)
    walk = Rebuilder(whole, env).run(lambda node, operands: None)
    part = Graph(listed, tuple(walk.env[v] for v in outputs), _names(graph, outputs), name)
    return part, {label: value for value, label in inputs.items()}


def _names(graph: Graph, values: Sequence[Value]) -> tuple[str, ...]:
    known = dict(zip(graph.outputs, graph.output_names, strict=True))
    return tuple(known.get(v, f"y{i}") for i, v in enumerate(values))
