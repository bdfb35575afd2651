"""Rewriting: replacing values, rebuilding graphs, and a small declarative pattern matcher.

A pattern is a tree of `P(op, *operands)` with captures; `match` returns the captures or None. Operands of commutative
ops match in either order. An `OneOf` tries alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferir.ir.graph.graph import Graph, Node, Value, rebuild, topological
from inferir.ir.graph.registry import opdef

Captures = dict[str, Value]


def replace(graph: Graph, mapping: Mapping[Value, Value], name: str | None = None) -> Graph:
    """A graph in which every use of a key is a use of its value. Replacements may use the values they replace."""
    return transform(graph, lambda node, operands: None, mapping, name)


def transform(
    graph: Graph,
    visit: Callable[[Node, tuple[Value, ...]], Value | tuple[Value, ...] | None],
    mapping: Mapping[Value, Value] | None = None,
    name: str | None = None,
) -> Graph:
    """Rebuild a graph bottom-up. `visit(node, new operands)` returns the new result(s), or None to keep the node's op.

    `mapping` redirects values of the old graph to other values, which may be new nodes on top of old ones.
    """
    done: dict[Value, Value] = {}
    original: dict[Value, Value] = {}  # rebuilt form of a replaced value, for uses inside its own replacement
    mapping = mapping or {}

    def known(value: Value) -> Value | None:
        return done.get(value) or original.get(value)

    def build(node: Node) -> tuple[Value, ...]:
        operands = tuple(done.get(v) or original[v] for v in node.operands)
        out = visit(node, operands) if node.op != "core.input" else None
        if out is None:
            out = rebuild(node, operands).results
        return out if isinstance(out, tuple) else (out,)

    def ensure(root: Value) -> None:
        stack = [root]
        opened: set[Value] = set()
        while stack:
            value = stack[-1]
            target = mapping.get(value)
            if value in done or (value in opened and stack.count(value) > 1 and value in original):
                stack.pop()
                continue
            if target is not None and value not in opened:
                opened.add(value)
                if target is not value:
                    stack.append(target)
                    continue
            if target is not None and target is not value and target in done:
                done[value] = done[target]
                stack.pop()
                continue
            missing = [v for v in value.node.operands if known(v) is None]
            if missing:
                stack.extend(missing)
                continue
            for old, new in zip(value.node.results, build(value.node), strict=True):
                if old in mapping and mapping[old] is not old:
                    original.setdefault(old, new)
                else:
                    done.setdefault(old, new)
            stack.pop()

    for value in graph.inputs:
        ensure(value)
    for value in graph.outputs:
        ensure(value)
    outputs = tuple(done[v] for v in graph.outputs)
    inputs: dict[Value, None] = {}  # in order; a replaced input stays only where its replacement uses it
    used = {id(n) for n in topological((), outputs)}
    for value in graph.inputs:
        if done[value] is value or id(value.node) in used:
            inputs[value] = None
        if done[value] is not value and done[value].op == "core.input":
            inputs[done[value]] = None
    return Graph(tuple(inputs), outputs, graph.output_names, name or graph.name)


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
