"""Small random decoders for property tests: what model code is made of, in any order, over rows of tokens.

`graphs(dtype)` is a hypothesis strategy. What it draws shrinks to an input, one op and the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.types import TensorType

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

HEAD = 8
"""Channels of a head."""


class _Decoder:
    """Builds a graph; values of the pool are [T, width], or [1, T, width] as they are captured."""

    def __init__(self, draw: DrawFn, dtype: DType) -> None:
        from hypothesis import strategies as st

        self.st, self.draw, self.dtype = st, draw, dtype
        self.b = Builder()
        self.width = draw(st.sampled_from([HEAD, 2 * HEAD]))
        self.batched = draw(st.booleans())
        self.lead = (1, T) if self.batched else (T,)
        self.inputs = [self.b.input("x", TensorType((T, self.width), dtype))]
        self.pool = [self.shaped(self.inputs[0], *self.lead, self.width) if self.batched else self.inputs[0]]
        self.weights = self.layers = 0
        self.angles: tuple[Value, Value] | None = None

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        return self.b.op(f"tensor.{name}", *operands, **attrs)

    def pick(self) -> Value:
        """One of the values so far; the newest first."""
        return self.pool[-1 - self.draw(self.st.integers(0, len(self.pool) - 1))]

    def weight(self, *shape: int, dtype: DType | None = None) -> Value:
        self.weights += 1
        return self.b.weight(f"w{self.weights}", TensorType(shape, dtype or self.dtype))

    def shaped(self, x: Value, *shape: Any) -> Value:
        return self.op("view", x, shape=shape)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.op("cast", x, dtype=dtype)

    def linear(self, x: Value, out: int) -> Value:
        bias = [self.weight(out)] if self.draw(self.st.booleans()) else []
        return self.op("linear", x, self.weight(out, int(x.type.shape[-1])), *bias)

    def binary(self) -> Value:
        return self.op(self.draw(self.st.sampled_from(["add", "sub", "mul", "maximum"])), self.pick(), self.pick())

    def unary(self) -> Value:
        return self.op(self.draw(self.st.sampled_from(["neg", "tanh", "sigmoid", "abs", "relu"])), self.pick())

    def number(self) -> Value:
        name = self.draw(self.st.sampled_from(["add", "mul", "sub", "div"]))
        value = self.draw(self.st.sampled_from([0.0, 1.0, 0.5, 0.1, -3.0]))
        return self.op(name, self.pick(), self.b.scalar(value or (1.0 if name == "div" else value)))

    def vector(self) -> Value:
        return self.op(self.draw(self.st.sampled_from(["add", "mul"])), self.pick(), self.weight(self.width))

    def product(self) -> Value:
        return self.linear(self.pick(), self.width)

    def norm(self) -> Value:
        f, w = self.cast(self.pick(), DType.F32), self.weight(self.width)
        square = self.draw(self.st.sampled_from([self.op("mul", f, f), self.op("pow", f, self.b.scalar(2))]))
        mean = self.op("mean", square, dims=(-1,), keepdim=True)
        y = self.op("mul", f, self.op("rsqrt", self.op("add", mean, self.b.scalar(1e-6))))
        if self.draw(self.st.booleans()):  # as Gemma: around 1, rounded behind the weight
            return self.cast(self.op("mul", y, self.op("add", self.cast(w, DType.F32), self.b.scalar(1.0))), self.dtype)
        return self.op("mul", w, self.cast(y, self.dtype))

    def layer_norm(self) -> Value:
        return self.b.op("nn.layer_norm", self.pick(), self.weight(self.width), self.weight(self.width), eps=1e-5)

    def gated(self) -> Value:
        x, inner = self.pick(), self.width * 3 // 2
        gate, up = self.linear(x, inner), self.linear(x, inner)
        kind: dict[str, Any] = {"approximate": "tanh"} if self.draw(self.st.booleans()) else {}
        act = self.op("gelu" if kind else "silu", gate, **kind)
        return self.linear(self.op("mul", act, up), self.width)

    def softcap(self) -> Value:
        cap = self.b.scalar(5.0)
        return self.op("mul", self.op("tanh", self.op("div", self.pick(), cap)), cap)

    def halves(self) -> Value:
        x, cut, end = self.pick(), self.width // 2, self.width
        a, c = (self.op("slice", x, dim=-1, start=s, stop=e) for s, e in ((0, cut), (cut, end)))
        return self.op("cat", self.op("neg", c), a, dim=-1)

    def rounded(self) -> Value:
        other = DType.F32 if self.dtype is not DType.F32 else DType.BF16
        return self.cast(self.cast(self.pick(), other), self.dtype)

    def tables(self) -> tuple[Value, Value]:
        """Cosines and sines of the tokens' positions, for all heads."""
        if self.angles is None:
            positions = self.b.input("positions", TensorType((T,), DType.I32))
            self.inputs.append(positions)
            at = self.cast(self.shaped(positions, *self.lead, 1), DType.F32)
            angle = self.op("mul", at, self.weight(HEAD // 2, dtype=DType.F32))
            angle = self.op("cat", angle, angle, dim=-1)
            shape = (1, 1, T, HEAD) if self.batched else (T, 1, HEAD)
            cos, sin = (self.shaped(self.cast(self.op(f, angle), self.dtype), *shape) for f in ("cos", "sin"))
            self.angles = cos, sin
        return self.angles

    def heads(self, x: Value) -> Value:
        count = int(x.type.shape[-1]) // HEAD
        y = self.shaped(x, *self.lead, count, HEAD)
        return self.op("permute", y, perm=(0, 2, 1, 3)) if self.batched else y

    def rows(self, x: Value) -> Value:
        """Heads as rows of tokens, [T, heads, HEAD]."""
        if not self.batched:
            return x
        return self.shaped(self.op("permute", x, perm=(0, 2, 1, 3)), T, int(x.type.shape[1]), HEAD)

    def turned(self, x: Value) -> Value:
        cos, sin = self.tables()
        low, high = (self.op("slice", x, dim=-1, start=s, stop=s + HEAD // 2) for s in (0, HEAD // 2))
        half = self.op("cat", self.op("neg", high), low, dim=-1)
        return self.op("add", self.op("mul", x, cos), self.op("mul", half, sin))

    def attention(self) -> Value:
        x = self.pick()
        q, k, v = (self.heads(self.linear(x, size)) for size in (self.width, HEAD, HEAD))
        if self.draw(self.st.booleans()):
            q, k = self.turned(q), self.turned(k)
        self.layers += 1
        o = self.b.op("attn.attention", *map(self.rows, (q, k, v)), scale=HEAD**-0.5, layer=self.layers - 1)
        return self.linear(self.shaped(o, *self.lead, self.width), self.width)

    def graph(self, most: int) -> Graph:
        kinds: list[Callable[[], Value]] = [
            self.binary, self.unary, self.number, self.vector, self.halves, self.rounded, self.softcap, self.product,
            self.layer_norm, self.norm, self.gated, self.attention,
        ]  # fmt: skip
        for _ in range(self.draw(self.st.integers(1, most))):
            made = self.draw(self.st.sampled_from(kinds))()
            self.pool.append(self.op("add", made, self.pick()) if self.draw(self.st.booleans()) else made)
        out = self.pool[-1]
        if self.draw(self.st.booleans()):
            out = self.op("linear", out, self.weight(24, self.width))
        if self.batched:
            out = self.shaped(out, T, int(out.type.shape[-1]))
        return Graph(tuple(self.inputs), (self.cast(out, DType.F32),), ("logits",), "random")


def graphs(dtype: DType, most: int = 6) -> SearchStrategy[Graph]:
    """Captured graphs (x [T, H] and perhaps positions [T]) -> logits [T, V] f32 of up to `most` parts in `dtype`."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw: DrawFn) -> Graph:
        return _Decoder(draw, dtype).graph(most)

    return build()
