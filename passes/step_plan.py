"""plan: the order of kernel calls, and where every intermediate value lies in one arena."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from inferir.ir.contract.kv_groups import KVCacheGroup
from inferir.ir.contract.manifest import ALIGNMENT, ArenaArg, Arg, InputArg, KVArg, OutputArg, ResidentArg, WeightArg
from inferir.ir.errors import PassError
from inferir.ir.graph.analysis import last_uses
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.registry import opdef
from inferir.ir.graph.types import TensorType


@dataclass(frozen=True)
class PlannedOp:
    """One kernel call. `args` match the kernel's parameters: the region's operands in order, then its results in order
    without the caches that are written in place.
    """

    region: Node
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class Buffer:
    """An intermediate value: `nbytes` at `offset` in the arena, live from the op that makes it (`first`) to its last
    reader (`last`).
    """

    op: int
    result: int
    type: TensorType
    nbytes: int
    first: int
    last: int
    offset: int = 0


@dataclass(frozen=True)
class OutputSpec:
    """A step output that the runtime allocates: `nbytes` at the bounds of the symbols."""

    name: str
    type: TensorType
    nbytes: int


@dataclass(frozen=True)
class StepPlan:
    """A step: `ops` in order, over an arena of `arena_bytes`. One plan serves all buckets; buffers are sized for
    `bounds`.
    """

    ops: tuple[PlannedOp, ...]
    arena_bytes: int
    buffers: tuple[Buffer, ...]
    outputs: tuple[OutputSpec, ...]
    bounds: Mapping[str, int]


def plan(
    graph: Graph, bounds: Mapping[str, int], kv: tuple[KVCacheGroup, ...] = (), residents: Collection[str] = ()
) -> StepPlan:
    """Plan a graph of regions. bounds: the largest value of every symbol that sizes an intermediate value (T, S, R).
    kv: whose inputs are caches. residents: names of the inputs that are resident buffers.

    Raises `PassError` for a node that is no region, or a symbol without bound.
    """
    regions = [n for n in graph.nodes if not opdef(n.op).source]
    for node in regions:
        if node.op != "kernel.region":
            raise PassError(f"plan: {node.op} in {node.loc.module or 'the graph'} is not in a kernel")
    known: dict[str, Arg] = {name: ResidentArg(name) for name in residents}
    known |= {name: KVArg(i, layer, t.role) for i, group in enumerate(kv) for name, layer, t in group.caches()}
    places: dict[Value, Arg] = {v: _source(v, known) for n in graph.nodes if opdef(n.op).source for v in n.results}
    aliased = _follow_caches(regions, places)
    outputs = _outputs(graph, places, bounds)
    placed = _place(_buffers(graph, regions, places, bounds))
    for buffer in placed:
        places[regions[buffer.op].results[buffer.result]] = ArenaArg(buffer.offset)
    ops = tuple(
        PlannedOp(n, tuple(places[v] for v in (*n.operands, *(r for r in n.results if r not in aliased))))
        for n in regions
    )
    arena = max((b.offset + b.nbytes for b in placed), default=0)
    return StepPlan(ops, _aligned(arena), tuple(placed), outputs, dict(bounds))


def _source(value: Value, known: Mapping[str, Arg]) -> Arg:
    if value.op == "core.scalar":
        raise PassError(f"plan: {value.op} in {value.node.loc.module or 'the graph'} is not in a kernel")
    name = str(value.node.attrs["name"])
    return WeightArg(name) if value.op == "core.weight" else known.get(name) or InputArg(name)


def _follow_caches(regions: list[Node], places: dict[Value, Arg]) -> set[Value]:
    """Give every written cache the place of the cache it was written to; returns those results."""
    aliased: set[Value] = set()
    for node in regions:
        body: Graph = node.attrs["body"]
        for result, out in zip(node.results, body.outputs, strict=True):
            if out.op != "kv.write":
                continue
            cache = out.node.operands[0]
            if cache not in body.inputs:
                raise PassError(f"plan: {node.attrs['name']} writes a cache that it did not get as operand")
            source = node.operands[body.inputs.index(cache)]
            if not isinstance(places.get(source), KVArg):
                raise PassError(f"plan: {node.attrs['name']} writes to {source.type}, which is no cache of a layer")
            places[result] = places[source]
            aliased.add(result)
    return aliased


def _outputs(graph: Graph, places: dict[Value, Arg], bounds: Mapping[str, int]) -> tuple[OutputSpec, ...]:
    specs = []
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if isinstance(places.get(value), KVArg):
            continue
        if value in places:
            raise PassError(f"plan: output {name!r} is an operand or another output, not the result of a kernel")
        places[value] = OutputArg(name)
        specs.append(OutputSpec(name, value.type, _nbytes(value.type, bounds)))
    return tuple(specs)


def _buffers(graph: Graph, regions: list[Node], places: Mapping[Value, Arg], bounds: Mapping[str, int]) -> list[Buffer]:
    last = last_uses(regions)
    return [
        Buffer(i, result.index, result.type, _nbytes(result.type, bounds), i, last.get(result, i))
        for i, node in enumerate(regions)
        for result in node.results
        if result not in places
    ]


def _place(buffers: list[Buffer]) -> list[Buffer]:
    """Offsets, largest buffer first, each in the lowest gap between buffers that are live at the same time."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.op, b.result)):
        offset = 0
        for other in sorted(
            (p for p in placed if p.first <= buffer.last and buffer.first <= p.last), key=lambda p: p.offset
        ):
            if offset + buffer.nbytes <= other.offset:
                break
            offset = max(offset, _aligned(other.offset + other.nbytes))
        placed.append(Buffer(buffer.op, buffer.result, buffer.type, buffer.nbytes, buffer.first, buffer.last, offset))
    return sorted(placed, key=lambda b: (b.op, b.result))


def _nbytes(type_: TensorType, bounds: Mapping[str, int]) -> int:
    try:
        return type_.nbytes(bounds)
    except KeyError as error:
        raise PassError(f"plan: no bound for {error.args[0]}, needed for a value of type {type_}") from None


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
