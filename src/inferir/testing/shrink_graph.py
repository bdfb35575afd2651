"""A smaller graph that still fails: outputs move up, and values become inputs of their own, as long as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from inferir.ir.errors import InferirError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value, rebuild
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType
from inferir.testing.failures import CheckFailedError

Failure = Callable[[Graph], CheckFailedError | None]


def shrink(graph: Graph, failure: Failure, most: int = 200) -> CheckFailedError | None:
    """The failure of the smallest part of `graph` that was found to fail within `most` tries; None if no part does."""
    best: CheckFailedError | None = None
    tries = 0
    progress = True
    while progress and tries < most:
        progress = False
        for smaller in _smaller(graph):
            tries += 1
            if tries > most:
                break
            found = failure(smaller)
            if found is not None:
                graph, best, progress = smaller, found, True
                break
    return best


def _smaller(graph: Graph) -> Iterator[Graph]:
    """Parts of the graph, the smallest steps last."""
    work = [n for n in graph.nodes if not opdef(n.op).source and len(n.results) == 1 and _rows(n.result)]
    size = len(graph.nodes)
    made: list[Graph] = []
    places = _spread(len(work))
    for i in places:  # the output is an earlier value
        made.append(_ending_in(work[i].result, graph))
    for i in places:  # a value is an input
        cut = _cut(graph, work[i].result)
        if cut is not None:
            made.append(cut)
    yield from (g for g in made if len(g.nodes) < size)


def _spread(count: int) -> list[int]:
    """All numbers below `count`, the middle first: a search by halves."""
    order, parts = [], [(0, count)]
    while parts:
        low, high = parts.pop(0)
        if low < high:
            middle = (low + high) // 2
            order.append(middle)
            parts += [(low, middle), (middle + 1, high)]
    return order


def _rows(value: Value) -> bool:
    """Whether a value has numbers for every token, so that it can be an output or input."""
    shape = value.type.shape
    lead = shape[:1] == (T,) or shape[:2] == (1, T)
    return lead and value.type.dtype.is_float and all(isinstance(d, int) for d in shape if d != T)


def _ending_in(value: Value, graph: Graph) -> Graph:
    b = Builder(value.node.loc)
    out = value if value.type.dtype is DType.F32 else b.op("tensor.cast", value, dtype=DType.F32)
    width = prod(int(d) for d in value.type.shape if d != T)
    return _of(graph, out if value.type.shape == (T, width) else b.op("tensor.view", out, shape=(T, width)))


def _of(graph: Graph, *outputs: Value) -> Graph:
    """A graph with these outputs and the inputs that they need."""
    every = Graph(graph.inputs, outputs, ("logits",) if len(outputs) == 1 else (), "part")
    used = {v for n in every.nodes for v in n.operands}
    return Graph(tuple(v for v in graph.inputs if v in used or v in outputs), outputs, every.output_names, "part")


def _cut(graph: Graph, value: Value) -> Graph | None:
    """The graph with a new input in place of a value."""
    if len(graph.outputs) != 1 or value in graph.outputs:
        return None
    b = Builder()
    shape = value.type.shape[1:] if value.type.shape[0] == 1 else value.type.shape
    new = b.input(f"cut{len(graph.nodes)}", TensorType(shape, value.type.dtype))
    env: dict[Value, Value] = {
        value: new if shape == value.type.shape else b.op("tensor.view", new, shape=value.type.shape)
    }
    try:
        for node in graph.nodes:
            if node.results[0] not in env:
                again = node if node.op == "core.input" else rebuild(node, tuple(env[v] for v in node.operands))
                env.update(zip(node.results, again.results, strict=True))
    except InferirError:
        return None
    whole = Graph((*graph.inputs, new), tuple(env[v] for v in graph.outputs), graph.output_names, graph.name)
    return _of(whole, *whole.outputs)
