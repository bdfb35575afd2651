"""What the pass tests share: golden checks with numbers behind them, and a paged cache to run graphs with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from inferir.ir.dtypes import torch_dtype
from inferir.ir.graph import Graph, structural_text
from inferir.ir.interpreter import interpret
from inferir.ir.parser import parse_graph
from inferir.ir.types import TensorType
from inferir.ir.verifier import verify
from inferir.passes.base import Pass

SIZES = {"T": 5, "S": 2, "R": 2, "NB": 8, "MB": 3, "A": 2}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def tensor_of(type_: TensorType, generator: torch.Generator) -> torch.Tensor:
    """Random content: normal floats, integers 0 … 3."""
    shape = type_.concrete(SIZES)
    if type_.dtype.is_float:
        return torch.randn(shape, generator=generator).to(torch_dtype(type_.dtype))
    return torch.randint(0, 4, shape, generator=generator).to(torch_dtype(type_.dtype))


def tensors_for(graph: Graph, seed: int = 0) -> tuple[Tensors, Tensors]:
    """Random inputs and weights, the same for the same names, whatever else a graph has."""

    def draw(name: str, type_: TensorType) -> torch.Tensor:
        return tensor_of(type_, torch.Generator().manual_seed(seed + sum(map(ord, name))))

    inputs = {str(v.node.attrs["name"]): draw(str(v.node.attrs["name"]), v.type) for v in graph.inputs}
    return inputs, {name: draw(name, v.type) for name, v in graph.weights().items()}


def with_recipes(weights: Mapping[str, torch.Tensor], recipes: Mapping[str, Graph]) -> Tensors:
    """Checkpoint weights and those computed from them."""
    made = {name: interpret(recipe, {}, weights)["value"].contiguous() for name, recipe in recipes.items()}
    return {**weights, **made}


@pytest.fixture
def run() -> Callable[..., Tensors]:
    """Evaluate a graph on random tensors (or those given by name)."""

    def run(graph: Graph, recipes: Mapping[str, Graph] | None = None, sources: Graph | None = None, **given: Any) -> Tensors:
        inputs, weights = tensors_for(graph)
        if sources is not None:
            weights.update(tensors_for(sources)[1])
        inputs = {k: given.get(k, v) for k, v in inputs.items()}
        weights = {k: given.get(k, v) for k, v in weights.items()}
        return interpret(graph, inputs, with_recipes(weights, recipes or {}))

    return run


@pytest.fixture
def golden(run: Callable[..., Tensors]) -> Callable[..., Graph]:
    """`golden(pass, before, after)`: the pass turns one IR text into the other, and both compute the same on random inputs.

    With `after` None only the numbers are compared. `exact=False` allows rounding differences. Other arguments give tensors by name.
    """

    def check(step: Pass, before: str, after: str | None, *, exact: bool = True, **given: Any) -> Graph:
        source = parse_graph(before)
        verify(source)
        result = step.run(source)
        verify(result)
        if after is not None:
            assert structural_text(result) == structural_text(parse_graph(after))
        want, got = run(source, **given), run(result, sources=source, **given)
        for name, tensor in want.items():
            tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {}
            torch.testing.assert_close(got[name].reshape(tensor.shape), tensor, **tolerance)
        return result

    return check


class Paged:
    """Runs steps of a graph with paged caches: a pool of blocks, a table per sequence."""

    def __init__(self, graph: Graph, weights: Mapping[str, torch.Tensor], block_size: int, blocks: int = 48) -> None:
        self.graph = graph
        self.weights = weights
        self.block_size = block_size
        self.caches = {
            str(v.node.attrs["name"]): torch.zeros((blocks, *v.type.shape[1:]), dtype=torch_dtype(v.type.dtype))  # type: ignore[arg-type]
            for v in graph.inputs
            if "cache." in str(v.node.attrs["name"])
        }
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        self.free = list(range(blocks - 1, 0, -1))

    def step(self, chunks: Sequence[tuple[str, Sequence[int]]], rows: Sequence[int] | None = None) -> Tensors:
        """Run (sequence, its next tokens) together; `rows` defaults to the last token of every chunk."""
        columns: dict[str, list[Any]] = {k: [] for k in ("ids", "positions", "slots", "attn_items", "rows")}
        for number, (name, tokens) in enumerate(chunks):
            start = self.lengths.get(name, 0)
            table = self.tables.setdefault(name, [])
            columns["attn_items"].append([number, len(columns["ids"]), len(tokens), start])
            for position, token in enumerate(tokens, start):
                if position // self.block_size >= len(table):
                    table.append(self.free.pop())
                columns["ids"].append(token)
                columns["positions"].append(position)
                columns["slots"].append(table[position // self.block_size] * self.block_size + position % self.block_size)
            columns["rows"].append(len(columns["ids"]) - 1)
            self.lengths[name] = start + len(tokens)
        if rows is not None:
            columns["rows"] = list(rows)
        widest = max(len(t) for t in self.tables.values())
        tables = [self.tables[name] + [0] * (widest - len(self.tables[name])) for name, _ in chunks]
        given = {k: torch.tensor(v, dtype=torch.int32) for k, v in {**columns, "block_tables": tables}.items()}
        count = len(columns["rows"])
        given |= {"temperature": torch.zeros(count), **{k: torch.zeros(count, dtype=torch.int32) for k in ("seed", "counter")}}
        given |= self.caches
        out = interpret(self.graph, {n: given[n] for n in self.graph.input_names}, self.weights)
        self.caches = {n: out[n] for n in self.caches}
        return out


@pytest.fixture
def paged() -> type[Paged]:
    return Paged
