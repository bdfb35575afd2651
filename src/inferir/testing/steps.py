"""Running a graph of any stage of the pipeline on the same sequences: whole ones before there is a paged cache, chunked
steps of several sequences afterwards, with neutral sampling parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferir.ir.contract.step_inputs import SAMPLE_INPUTS, STEP_INPUTS
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import torch_dtype
from inferir.ir.graph.graph import Graph, Node, Value
from inferir.ir.graph.interpreter import Observe, interpret
from inferir.ir.graph.registry import opdef
from inferir.testing.tensors import generator_for

if TYPE_CHECKING:
    import torch

Chunks = Sequence[tuple[str, int, int]]

LENGTHS = {"a": 9, "b": 5}
STEPS: tuple[Chunks, ...] = (
    [("a", 0, 4)],
    [("b", 0, 3), ("a", 4, 5)],
    [("a", 5, 8), ("b", 3, 4)],
    [("a", 8, 9), ("b", 4, 5)],
)
"""Tokens from … to of sequences that run together."""
BLOCKS, IDS = 9, 16
"""Blocks of the caches; token ids are below `IDS`, whatever tables a graph has."""


@dataclass
class Outcome:
    """What a graph computes. rows: results by (output, sequence, position); caches: their last content by output name;
    largest: of all finite numbers on the way, by size.
    """

    rows: dict[tuple[str, str, int], torch.Tensor] = field(default_factory=dict)
    caches: dict[str, torch.Tensor] = field(default_factory=dict)
    largest: float = 0.0

    def watch(self, node: Node, results: tuple[Any, ...]) -> None:
        """Called with every node and its results."""
        if opdef(node.op).source or "cache" in str(node.attrs.get("name", "")):
            return
        for tensor in results:
            if getattr(tensor, "is_floating_point", bool)() and tensor.numel():
                top = float(tensor.float().nan_to_num(0, 0, 0).abs().max())
                self.largest = max(self.largest, top)


def run_graph(graph: Graph, weights: Mapping[str, torch.Tensor], block_size: int, seed: int = 0) -> Outcome:
    """The results for every token of the sequences, or for those that steps ask for."""
    feed = _Feed(graph, block_size, seed)
    out = Outcome()
    steps = STEPS if feed.paged else [[(name, 0, length)] for name, length in LENGTHS.items()]
    for chunks in steps:
        feed.step(chunks, weights, out, out.watch)
    out.caches = {name: feed.caches[name] for name in feed.caches if name in graph.output_names}
    return out


def sample_operands(rows: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Operands of `sample.draw` that take the most likely token, without mask, filters and edits."""
    import torch

    sizes = {"R": rows, "E": 1, "words": (vocabulary + 31) // 32}
    return {
        i.name: torch.full([sizes[str(d)] for d in i.dims], i.name == "top_p", dtype=torch_dtype(i.dtype))
        for i in SAMPLE_INPUTS
    }


def operands_of(
    graph: Graph, weights: Mapping[str, torch.Tensor], block_size: int
) -> dict[Node, tuple[torch.Tensor, ...]]:
    """What the regions of a paged graph are given in the last step but one, which has several tokens of one sequence
    and one of another.
    """
    values: dict[Value, Any] = {}
    found: dict[Node, tuple[torch.Tensor, ...]] = {}

    def watch(node: Node, results: tuple[Any, ...]) -> None:
        if node.op == "kernel.region":
            found[node] = tuple(values[v] for v in node.operands)
        values.update(zip(node.results, results, strict=True))

    feed, out = _Feed(graph, block_size, 0), Outcome()
    for chunks in STEPS[:-1]:
        feed.step(chunks, weights, out, watch)
    return found


class _Feed:
    """Inputs of a graph for steps, and the caches between them."""

    def __init__(self, graph: Graph, block_size: int, seed: int) -> None:
        import torch

        self.graph, self.block_size, self.seed = graph, block_size, seed
        self.types = {n: v.type for n, v in zip(graph.input_names, graph.inputs, strict=True)}
        bases = {name.split(".")[0] for name in self.types}
        self.paged = bool(bases & {"slots", "rows"})
        self.caches = {
            name: torch.zeros(type_.concrete({"NB": BLOCKS}), dtype=torch_dtype(type_.dtype))
            for name, type_ in self.types.items()
            if "cache." in name
        }
        self.tables = {"a": [3, 1, 7], "b": [2, 5, 8]}
        self.tokens: dict[tuple[str, str], torch.Tensor] = {}

    def step(
        self, chunks: Chunks, weights: Mapping[str, torch.Tensor], out: Outcome, observe: Observe | None = None
    ) -> None:
        """Run these tokens together and add their results to `out`."""
        where = [(name, position) for name, start, stop in chunks for position in range(start, stop)]
        last, row = [], -1
        for _, start, stop in chunks:
            row += stop - start
            last.append(row)
        given = {name: self._input(name, chunks, where, last) for name in self.types}
        for value, name in zip(self.graph.inputs, self.graph.input_names, strict=True):
            if observe is not None:
                observe(value.node, (given[name],))
        results = interpret(self.graph, given, weights, observe)
        for name, tensor in results.items():
            if name in self.caches:
                self.caches[name] = tensor
                continue
            by_token = self.graph.output(name).type.shape[:1] == (T,)
            places = where if by_token else [where[i] for i in last]
            for place, content in zip(places, tensor, strict=True):
                out.rows[name, *place] = content

    def _input(self, name: str, chunks: Chunks, where: Sequence[tuple[str, int]], last: Sequence[int]) -> torch.Tensor:
        import torch

        base, size = name.split(".")[0], self.block_size

        def ints(values: Any) -> torch.Tensor:
            return torch.tensor(values, dtype=torch_dtype(self.types[name].dtype))

        if name in self.caches:
            return self.caches[name]
        if base == "positions":
            return ints([position for _, position in where])
        if base == "lengths":
            return ints([max(LENGTHS[s], p + 1) for s, p in where])
        if base in ("rows", "argmax_rows"):
            return ints(list(last))
        if base == "slots":
            return ints([self.tables[s][p // size] * size + p % size for s, p in where])
        if base == "block_tables":
            return ints([self.tables[s] for s, _, _ in chunks])
        if base == "attn_items":
            first = [sum(stop - start for _, start, stop in chunks[:i]) for i in range(len(chunks))]
            return ints([[i, first[i], b - a, a, -1, 0] for i, (_, a, b) in enumerate(chunks)])
        if base in STEP_INPUTS and base != "ids":
            return sample_operands(len(last), int(self.graph.output("logits").type.shape[1]))[base]
        return torch.stack([self._token(name, s)[p] for s, p in where])

    def _token(self, name: str, sequence: str) -> torch.Tensor:
        """What the tokens of a sequence have of an input, by position; whatever runs beside it."""
        import torch

        if (name, sequence) not in self.tokens:
            type_, generator = self.types[name], generator_for(f"{name} {sequence}", self.seed)
            shape = (LENGTHS[sequence], *type_.concrete({"T": LENGTHS[sequence]})[1:])
            if type_.dtype.is_float:
                tensor = torch.randn(shape, generator=generator)
            else:
                tensor = torch.randint(0, IDS if type_.dtype.is_int else 2, shape, generator=generator)
            self.tokens[name, sequence] = tensor.to(torch_dtype(type_.dtype))
        return self.tokens[name, sequence]
