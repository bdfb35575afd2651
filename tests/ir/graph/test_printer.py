"""IR text: the exact form of a small graph, and a round trip over random graphs."""

import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dims import A, R, S, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Node, Provenance, Value
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.printer import print_graph
from inferir.ir.graph.types import TensorType

F32, BF16 = DType.F32, DType.BF16


def test_text_of_a_small_graph() -> None:
    b = Builder(Provenance("model.embed", "aten.embedding"))
    ids = b.input("ids", TensorType((T,), DType.I32))
    w = b.weight("embed.weight", TensorType((256, 64), BF16))
    x = b.op("tensor.embedding", w, ids)
    b = Builder()
    g = Graph(
        (ids,), (b.op("tensor.mul", x, b.scalar(-0.5)), b.op("tensor.view", x, shape=(T, 2, 32))), ("y", "z"), "toy"
    )
    assert print_graph(g) == "\n".join(
        [
            'graph @toy(%ids: i32[T] @ "model.embed:aten.embedding") -> (%4 as "y", %5 as "z") {',
            '  %1 = core.weight {name="embed.weight"} : bf16[256, 64] @ "model.embed:aten.embedding"',
            '  %2 = tensor.embedding(%1, %ids) : bf16[T, 64] @ "model.embed:aten.embedding"',
            "  %3 = core.scalar {value=-0.5} : f64[]",
            "  %4 = tensor.mul(%2, %3) : bf16[T, 64]",
            "  %5 = tensor.view(%2) {shape=(T, 2, 32)} : bf16[T, 2, 32]",
            "}",
        ]
    )


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.sampled_from([math.inf, -math.inf, -0.0, 1e-6, -1e-06, 1e300, 5e-324]),
)
NAMES = st.one_of(
    st.from_regex(r"[a-z_]{1,3}(\.[0-9a-z]{1,2})?", fullmatch=True), st.text(max_size=4), st.just("7b"), st.just("1")
)
LOCS = st.builds(
    Provenance,
    st.from_regex(r"[a-z0-9_.]{0,8}", fullmatch=True),
    st.one_of(st.just(""), st.just("aten::mul"), st.text(max_size=4)),
)


class _Growing:
    """A graph under construction: values of type [T, 8] in f32 and bf16, and nodes of every attribute kind."""

    def __init__(self, draw: st.DrawFn, depth: int) -> None:
        self.draw, self.depth, self.b = draw, depth, Builder()
        names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        dtypes = st.sampled_from([F32, BF16])
        self.inputs = [self.b.input(n, TensorType((T, 8), draw(dtypes)), draw(LOCS)) for n in names]
        self.pool = list(self.inputs)

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.pool))

    def step(self) -> None:
        kinds = ["unary", "scalar", "binary", "cast", "shape", "constant", "full"]
        kind = self.draw(st.sampled_from(kinds + ["weight", "region", "region"] * (self.depth > 0)))
        b, x, loc = self.b, self.pick(), self.draw(LOCS)
        new: tuple[Value, ...] = ()
        if kind == "unary":
            new = (b.op("tensor.gelu", x, approximate=self.draw(st.sampled_from(["none", "tanh"])), loc=loc),)
        elif kind == "scalar":
            value = self.draw(NUMBERS.filter(lambda v: not isinstance(v, bool)))
            new = (b.op("tensor.mul", x, b.scalar(value, loc), loc=loc),)
        elif kind == "binary":
            other = self.draw(st.sampled_from([v for v in self.pool if v.type == x.type]))
            new = (b.op("tensor.add", x, other, loc=loc),)
        elif kind == "cast":
            new = (b.op("tensor.cast", x, dtype=self.draw(st.sampled_from([F32, BF16]))),)
        elif kind == "shape":
            cut = b.op("tensor.slice", x, dim=-1, start=0, stop=4, loc=loc)
            flat = b.op("tensor.view", b.op("tensor.view", x, shape=(8 * T,)), shape=(T, 8))
            new = (b.op("tensor.cat", cut, cut, dim=1), flat)
        elif kind == "weight":
            w = b.weight(self.draw(NAMES), TensorType((8,), x.type.dtype))
            new = (b.op("tensor.mul", x, w, loc=loc),)
        elif kind == "constant":
            data = self.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=8, max_size=8))
            new = (b.op("tensor.add", x, b.op("core.constant", dtype=x.type.dtype, shape=(8,), data=tuple(data))),)
        elif kind == "full":
            value = self.draw(NUMBERS)
            new = (b.op("tensor.full", shape=(T, 8), value=value, dtype=x.type.dtype, loc=loc),)
        else:
            body = self.draw(graphs(self.depth - 1))
            args = [b.op("tensor.cast", self.pick(), dtype=i.type.dtype) for i in body.inputs]
            attrs = {"anchor": "rowwise", "body": body, "name": self.draw(st.text(max_size=3))}
            new = b.node("kernel.region", args, attrs, loc).results
        self.pool += new


@st.composite
def graphs(draw: st.DrawFn, depth: int = 1) -> Graph:
    growing = _Growing(draw, depth)
    for _ in range(draw(st.integers(0, 5))):
        growing.step()
    outputs = draw(st.lists(st.sampled_from(growing.pool), min_size=1, max_size=3))
    names = draw(st.lists(st.text(max_size=4), min_size=len(outputs), max_size=len(outputs), unique=True))
    return Graph(tuple(growing.inputs), tuple(outputs), tuple(names), draw(NAMES))


def awkward() -> Graph:
    """A region with two results, names that are no words, and infinities."""
    b = Builder(Provenance("layers.0", "aten::x"))
    x = b.input("a/b", TensorType((T, 8), F32))
    y = b.input("a:b", TensorType((T, 8), F32))
    body = Graph((x,), (b.op("tensor.exp", x), b.op("tensor.mul", x, b.scalar(-math.inf))), name="8 bit")
    node = b.node("kernel.region", (y,), {"anchor": "rowwise", "body": body, "name": 'say "hi"\n'})
    return Graph((x, y), (*node.results, x), ("", "ü", "a b"), "")


def trail(graph: Graph) -> list[Any]:
    """What the structural hash leaves out: names of graphs and provenance, bodies included."""
    out: list[Any] = [graph.name]
    for node in graph.nodes:
        out.append(str(node.loc))
        out += [trail(v) for v in node.attrs.values() if isinstance(v, Graph)]
    return out


@settings(max_examples=120, deadline=None)
@given(graphs())
@example(awkward())
def test_printed_graphs_parse_back(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text)
    assert again.structural_hash() == graph.structural_hash()
    assert trail(again) == trail(graph)
    assert again.input_names == graph.input_names
    assert print_graph(again) == text


# Each case: attribute values that no op's type rule restricts, so that the text form alone is tested.
ATTRS = st.recursive(
    st.one_of(
        st.none(),
        NUMBERS,
        st.text(max_size=5),
        st.sampled_from([*DType]),
        st.sampled_from([T, S + 1, 2 * T * R, A**2, (T + 15) / 16]),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(ATTRS)
@example(("f32", DType.F32, "none", None, "(", "T", T))
@example(((), ((),), (1,), (1.0, True)))
def test_every_kind_of_attribute_round_trips(value: Any) -> None:
    attrs = Attrs({"name": "w", "extra": value})
    node = Node("core.weight", (), attrs, (TensorType((4,), F32),))
    again = parse_graph(print_graph(Graph((), (node.result,))))
    assert again.nodes[0].attrs == attrs
