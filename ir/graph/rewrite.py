"""Rewriting: graphs rebuilt node by node, and a small declarative pattern matcher.

A pattern is a tree of `P(op, *operands)` with captures; `match` returns the captures or None. Operands of commutative
ops match in either order. An `OneOf` tries alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferir.ir.graph.graph import Graph, Node, Value, rebuild
from inferir.ir.graph.registry import opdef

Captures = dict[str, Value]


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


def transform(graph: Graph, visit: Visit) -> Graph:
    """`graph` with every node passed through `visit`; the same graph if nothing changed."""
    walk = Rebuilder(graph).run(visit)
    if all(walk.env[v] is v for v in graph.outputs):
        return graph
    return walk.graph_with()


@dataclass(frozen=True)
class Any_:  # noqa: N801 - `Any` is taken
    """Matches every value; captured under `name`. The same name twice must match the same value."""

    name: str
    where: Callable[[Value], bool] | None = None


@dataclass(frozen=True)
class Scalar:
    """Matches a `core.scalar`; `value` restricts it. Captured under `name`."""

    name: str = ""
    value: float | None = None


@dataclass(frozen=True)
class P:
    """Matches a node by op, operand patterns and attributes; captured under `name` if given."""

    op: str
    operands: tuple[Any, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __init__(self, op: str, *operands: Any, attrs: Mapping[str, Any] | None = None, name: str = "") -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "attrs", dict(attrs or {}))
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class Opt:
    """Matches `P(op, inner)` or just `inner`: an op, such as a cast or view, that may be absent."""

    op: str
    inner: Any


@dataclass(frozen=True)
class OneOf:
    """Matches the first alternative that fits."""

    alternatives: tuple[Any, ...]

    def __init__(self, *alternatives: Any) -> None:
        object.__setattr__(self, "alternatives", alternatives)


def match(pattern: Any, value: Value) -> Captures | None:
    """Captures if `value` is produced by a tree that fits `pattern`, else None.

    Where commutative operands or alternatives fit in several ways, the first that lets the whole pattern fit is taken.
    """
    return next(_match(pattern, value, {}), None)


def _bindto(captures: Captures, name: str, value: Value) -> Iterator[Captures]:
    if not name:
        yield captures
    elif name not in captures:
        yield {**captures, name: value}
    elif captures[name] is value:
        yield captures


def _match(pattern: Any, value: Value, captures: Captures) -> Iterator[Captures]:
    """All ways to extend `captures` so that `value` fits `pattern`, most preferred first."""
    if isinstance(pattern, Any_):
        if pattern.where is None or pattern.where(value):
            yield from _bindto(captures, pattern.name, value)
    elif isinstance(pattern, Scalar):
        if value.op == "core.scalar" and (pattern.value is None or value.node.attrs["value"] == pattern.value):
            yield from _bindto(captures, pattern.name, value)
    elif isinstance(pattern, OneOf):
        for alternative in pattern.alternatives:
            yield from _match(alternative, value, captures)
    elif isinstance(pattern, Opt):
        if value.op == pattern.op:
            yield from _match(pattern.inner, value.node.operands[0], captures)
        yield from _match(pattern.inner, value, captures)
    else:
        assert isinstance(pattern, P)
        yield from _match_node(pattern, value, captures)


def _match_node(pattern: P, value: Value, captures: Captures) -> Iterator[Captures]:
    node = value.node
    if node.op != pattern.op or any(node.attrs.get(k) != v for k, v in pattern.attrs.items()):
        return
    if pattern.operands and len(pattern.operands) != len(node.operands):
        return
    orders = [pattern.operands]
    if opdef(node.op).commutative and len(pattern.operands) == 2:
        orders.append(pattern.operands[::-1])
    for order in orders:
        for found in _match_all(order, node.operands, captures):
            yield from _bindto(found, pattern.name, value)


def _match_all(patterns: tuple[Any, ...], operands: tuple[Value, ...], captures: Captures) -> Iterator[Captures]:
    if not patterns:
        yield captures
        return
    for found in _match(patterns[0], operands[0], captures):
        yield from _match_all(patterns[1:], operands[1:], found)
