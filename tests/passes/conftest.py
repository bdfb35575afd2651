"""What the pass tests share: golden checks with numbers behind them, and a paged cache to run graphs with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from inferir.ir.contract.kv_reads import FullAttention, SlidingWindow
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph, Provenance, Value, structural_text
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify
from inferir.passes.context import Pass
from inferir.testing.steps import sample_operands
from inferir.testing.tensors import with_transforms

SIZES = {"T": 5, "S": 2, "R": 2, "G": 3, "NB": 8, "MB": 3, "A": 2, "E": 6}
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


@pytest.fixture
def with_weights() -> Callable[..., Tensors]:
    return with_transforms


@pytest.fixture
def run() -> Callable[..., Tensors]:
    """Evaluate a graph on random tensors (or those given by name)."""

    def run(
        graph: Graph, transforms: Mapping[str, Graph] | None = None, sources: Graph | None = None, **given: Any
    ) -> Tensors:
        inputs, weights = tensors_for(graph)
        if sources is not None:
            weights.update(tensors_for(sources)[1])
        inputs = {k: given.get(k, v) for k, v in inputs.items()}
        weights = {k: given.get(k, v) for k, v in weights.items()}
        return interpret(graph, inputs, with_transforms(weights, transforms or {}))

    return run


@pytest.fixture
def golden(run: Callable[..., Tensors]) -> Callable[..., Graph]:
    """`golden(pass, before, after)`: the pass turns one IR text into the other, and both compute the same.

    With `after` None only the numbers are compared. `exact=False` allows rounding differences. Other arguments give
    tensors by name; the rest is random.
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
        size = self.block_size
        columns: dict[str, list[Any]] = {k: [] for k in ("ids", "positions", "slots", "attn_items", "rows")}
        for number, (name, tokens) in enumerate(chunks):
            start = self.lengths.get(name, 0)
            table = self.tables.setdefault(name, [])
            columns["attn_items"].append([number, len(columns["ids"]), len(tokens), start, -1, 0])
            for position, token in enumerate(tokens, start):
                if position // size >= len(table):
                    table.append(self.free.pop())
                columns["ids"].append(token)
                columns["positions"].append(position)
                columns["slots"].append(table[position // size] * size + position % size)
            columns["rows"].append(len(columns["ids"]) - 1)
            self.lengths[name] = start + len(tokens)
        if rows is not None:
            columns["rows"] = list(rows)
        widest = max(len(t) for t in self.tables.values())
        tables = [self.tables[name] + [0] * (widest - len(self.tables[name])) for name, _ in chunks]
        given = {k: torch.tensor(v, dtype=torch.int32) for k, v in {**columns, "block_tables": tables}.items()}
        count = len(columns["rows"])
        given["argmax_rows"] = given["rows"]
        if "temperature" in self.graph.input_names:
            given |= sample_operands(count, int(self.graph.output("logits").type.shape[1]))
        given |= self.caches
        names = self.graph.input_names  # groups of layers have names such as `slots.1`; here they share one table
        out = interpret(self.graph, {n: given[n if n in given else n.split(".")[0]] for n in names}, self.weights)
        self.caches = {n: out[n] for n in self.caches}
        return out


@pytest.fixture
def paged() -> type[Paged]:
    return Paged


class TinyModel:
    """A decoder as it is captured: batch axis of 1, everything but attention decomposed, tied embeddings."""

    hidden, heads, kv_heads, size, inner, vocabulary = 16, 2, 1, 8, 24, 40

    def __init__(self, layers: int, dtype: DType) -> None:
        self.b = Builder()
        self.dtype = dtype
        ids, positions = (self.b.input(n, TensorType((T,), DType.I32)) for n in ("ids", "positions"))
        table = self.weight("embed", self.vocabulary, self.hidden)
        x = self.op("embedding", table, self.view(ids, 1, T))
        cos, sin = self.tables(positions)
        for i in range(layers):
            x = self.layer(x, cos, sin, i)
        logits = self.op("linear", self.norm(x, "norm"), table)
        self.graph = Graph(
            (ids, positions), (self.cast(self.view(logits, T, self.vocabulary), DType.F32),), ("logits",)
        )
        self.weights: Tensors = {}
        self.randomise(7)

    def randomise(self, seed: int) -> None:
        """New weights."""
        generator = torch.Generator().manual_seed(seed)
        for name, value in self.graph.weights().items():
            tensor = torch.randn(value.type.concrete({}), generator=generator) * (0.1 if value.type.rank == 1 else 0.3)
            centre = 1.0 if "norm" in name else 0.0
            self.weights[name] = (tensor + centre).to(torch_dtype(value.type.dtype))
        self.weights["freq"] = 1.0 / 100.0 ** (torch.arange(self.size // 2) / (self.size // 2))

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        return self.b.op(f"tensor.{name}", *operands, loc=self.b.loc, **attrs)

    def weight(self, name: str, *shape: int, dtype: DType | None = None) -> Value:
        return self.b.weight(name, TensorType(shape, dtype or self.dtype))

    def view(self, x: Value, *shape: Any) -> Value:
        return self.op("view", x, shape=shape)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.op("cast", x, dtype=dtype)

    def tables(self, positions: Value) -> tuple[Value, Value]:
        angle = self.op(
            "mul",
            self.cast(self.view(positions, 1, T, 1), DType.F32),
            self.weight("freq", self.size // 2, dtype=DType.F32),
        )
        angle = self.op("cat", angle, angle, dim=-1)
        cos, sin = (self.op("mul", self.op(f, angle), self.b.scalar(1.0)) for f in ("cos", "sin"))
        return self.cast(cos, self.dtype), self.cast(sin, self.dtype)

    def norm(self, x: Value, name: str) -> Value:
        w = self.weight(name, int(x.type.shape[-1]))
        f = self.cast(x, DType.F32)
        mean = self.op("mean", self.op("pow", f, self.b.scalar(2)), dims=(-1,), keepdim=True)
        y = self.op("mul", f, self.op("rsqrt", self.op("add", mean, self.b.scalar(1e-6))))
        return self.op("mul", w, self.cast(y, self.dtype))

    def linear(self, x: Value, name: str, out: int) -> Value:
        return self.op("linear", x, self.weight(f"{name}.weight", out, int(x.type.shape[-1])))

    def rotate(self, x: Value, cos: Value, sin: Value) -> Value:
        half = self.size // 2
        low, high = (self.op("slice", x, dim=3, start=a, stop=a + half) for a in (0, half))
        turned = self.op("cat", self.op("neg", high), low, dim=-1)
        c, s = (self.view(v, 1, 1, T, self.size) for v in (cos, sin))
        return self.op("add", self.op("mul", x, c), self.op("mul", turned, s))

    def heads_of(self, x: Value, name: str, heads: int) -> Value:
        y = self.view(self.linear(x, name, heads * self.size), 1, T, heads, self.size)
        return self.op("permute", y, perm=(0, 2, 1, 3))

    def layer(self, x: Value, cos: Value, sin: Value, i: int) -> Value:
        self.b.loc = Provenance(f"layers.{i}.attn", "aten")
        h = self.norm(x, f"layers.{i}.norm1")
        q = self.rotate(self.heads_of(h, f"layers.{i}.attn.q", self.heads), cos, sin)
        k = self.rotate(self.heads_of(h, f"layers.{i}.attn.k", self.kv_heads), cos, sin)
        v = self.heads_of(h, f"layers.{i}.attn.v", self.kv_heads)
        rows = [
            self.view(self.op("permute", t, perm=(0, 2, 1, 3)), T, int(t.type.shape[1]), self.size) for t in (q, k, v)
        ]
        o = self.b.op(
            "attn.attention",
            *rows,
            loc=self.b.loc,
            scale=self.size**-0.5,
            reads=SlidingWindow(3) if i % 2 else FullAttention(),
            layer=i,
        )
        x = self.op(
            "add", x, self.linear(self.view(o, 1, T, self.heads * self.size), f"layers.{i}.attn.o", self.hidden)
        )
        self.b.loc = Provenance(f"layers.{i}.mlp", "aten")
        h = self.norm(x, f"layers.{i}.norm2")
        gate, up = (self.linear(h, f"layers.{i}.mlp.{n}", self.inner) for n in ("gate", "up"))
        return self.op(
            "add", x, self.linear(self.op("mul", self.op("silu", gate), up), f"layers.{i}.mlp.down", self.hidden)
        )

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits of a whole sequence by the captured graph."""
        count = len(tokens)
        given = {"ids": torch.tensor(tokens, dtype=torch.int32), "positions": torch.arange(count, dtype=torch.int32)}
        return interpret(self.graph, given, self.weights)["logits"]


@pytest.fixture
def tiny() -> Callable[..., TinyModel]:
    """`tiny(layers, dtype)`: a captured decoder with weights."""

    def make(layers: int = 2, dtype: DType = DType.F32) -> TinyModel:
        return TinyModel(layers, dtype)

    return make
