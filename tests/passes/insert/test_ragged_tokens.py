"""ragged-tokens: the token axis comes first, the batch axis goes, and nothing may mix tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inferir.ir.errors import PassError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Provenance, Value, structural_text
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.types import TensorType
from inferir.passes.insert.ragged_tokens import RaggedTokens, short

B = Builder(Provenance("model.layers.3.mixer"))


def x(*shape: object, dtype: DType = DType.F32) -> Value:
    return B.input("x", TensorType(shape, dtype))  # type: ignore[arg-type]


def same(source: Value, result: Value, *weights: str) -> Graph:
    """The pass keeps every element: a value of shape s with tokens at p is permuted to [T] + rest."""
    before = Graph((source,), (result,), ("y",))
    after = RaggedTokens().run(before)
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn([3 if d == T else d for d in source.type.shape], generator=generator)
    tensors = {name: torch.randn(v.type.concrete({}), generator=generator) for name, v in before.weights().items()}
    want = interpret(before, {"x": tensor}, tensors)["y"]
    got = interpret(after, {"x": first(tensor, source)}, tensors)["y"]
    assert after.output("y").type.shape[0] == T
    torch.testing.assert_close(got, first(want, result), rtol=0, atol=0)
    return after


def first(tensor: torch.Tensor, value: Value) -> torch.Tensor:
    p = value.type.shape.index(T)
    out = tensor.movedim(p, 0)
    return out.reshape(out.shape[0], *out.shape[2:]) if p > 0 and value.type.shape[0] == 1 else out


def ops(graph: Graph) -> list[str]:
    return [n.op.removeprefix("tensor.") for n in graph.nodes if not n.op.startswith("core.")]


def test_heads_of_attention_need_no_permute() -> None:
    before = """graph @g(%x: f32[1, T, 8], %c: f32[T, 2]) -> (%7 as "y") {
      %1 = tensor.view(%x) {shape=(1, T, 4, 2)} : f32[1, T, 4, 2]
      %2 = tensor.permute(%1) {perm=(0, 2, 1, 3)} : f32[1, 4, T, 2]
      %3 = tensor.view(%c) {shape=(1, 1, T, 2)} : f32[1, 1, T, 2]
      %4 = tensor.mul(%2, %3) : f32[1, 4, T, 2]
      %5 = tensor.slice(%4) {dim=3, start=0, step=1, stop=1} : f32[1, 4, T, 1]
      %6 = tensor.permute(%5) {perm=(0, 2, 1, 3)} : f32[1, T, 4, 1]
      %7 = tensor.view(%6) {shape=(1, T, 4)} : f32[1, T, 4]
    }"""
    after = """graph @g(%x: f32[T, 8], %c: f32[T, 2]) -> (%5 as "y") {
      %1 = tensor.view(%x) {shape=(T, 4, 2)} : f32[T, 4, 2]
      %2 = tensor.view(%c) {shape=(T, 1, 2)} : f32[T, 1, 2]
      %3 = tensor.mul(%1, %2) : f32[T, 4, 2]
      %4 = tensor.slice(%3) {dim=2, start=0, step=1, stop=1} : f32[T, 4, 1]
      %5 = tensor.view(%4) {shape=(T, 4)} : f32[T, 4]
    }"""
    assert structural_text(RaggedTokens().run(parse_graph(before))) == structural_text(parse_graph(after))


def test_elementwise_aligns_operands_of_other_ranks() -> None:
    v = x(1, 4, T, 2)
    w = B.weight("w", TensorType((4, 1, 2), DType.F32))
    u = B.weight("u", TensorType((2,), DType.F32))
    graph = same(v, B.op("tensor.add", B.op("tensor.mul", v, w), u))
    assert ops(graph) == ["view", "mul", "add"]  # only w, which has a unit axis where tokens were, needs another shape


@pytest.mark.parametrize(
    ("op", "attrs", "shape"),
    [
        ("mean", {"dims": (-1,), "keepdim": True}, (1, 4, T, 2)),
        ("sum", {"dims": (1, 3), "keepdim": False}, (1, 4, T, 2)),
        ("max", {"dims": (0,), "keepdim": False}, (1, T, 4)),
        ("softmax", {"dim": 1}, (1, 4, T, 2)),
        ("slice", {"dim": -1, "start": 1, "stop": 2}, (1, T, 4)),
        ("permute", {"perm": (2, 0, 3, 1)}, (1, 4, T, 2)),
        ("permute", {"perm": (1, 0, 2)}, (1, T, 4)),
        ("permute", {"perm": (3, 0, 1, 2)}, (2, T, 3, 4)),
        ("view", {"shape": (T, 8)}, (1, T, 4, 2)),
        ("view", {"shape": (1, 2, T, 2, 2)}, (2, T, 4)),
        ("expand", {"shape": (1, 3, T, 4)}, (1, 1, T, 4)),
        ("expand", {"shape": (2, 1, T, 4)}, (T, 4)),
    ],
)
def test_shape_ops_and_reductions(op: str, attrs: dict[str, object], shape: tuple[object, ...]) -> None:
    v = x(*shape)
    same(v, B.op(f"tensor.{op}", v, **attrs))


def test_products_norms_and_lookups() -> None:
    v = x(1, T, 4)
    w = B.weight("w", TensorType((6, 4), DType.F32))
    b = B.weight("b", TensorType((6,), DType.F32))
    assert ops(same(v, B.op("tensor.linear", v, w, b))) == ["linear"]
    n = B.weight("n", TensorType((4,), DType.F32))
    assert ops(same(v, B.op("nn.rms_norm", v, n, eps=1e-6))) == ["nn.rms_norm"]
    assert ops(same(v, B.op("tensor.cat", v, B.op("tensor.neg", v), dim=-1))) == ["neg", "cat"]
    heads = x(2, T, 1, 4)
    other = B.op("tensor.view", heads, shape=(2, T, 4, 1))
    same(heads, B.op("tensor.matmul", heads, other))


def test_embedding_of_batched_ids() -> None:
    ids = B.input("ids", TensorType((T,), DType.I32))
    table = B.weight("table", TensorType((10, 3), DType.F32))
    batched = B.op("tensor.view", ids, shape=(1, T))
    after = RaggedTokens().run(Graph((ids,), (B.op("tensor.embedding", table, batched),)))
    assert ops(after) == ["embedding"]
    assert after.outputs[0].type == TensorType((T, 3), DType.F32)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda v: B.op("tensor.sum", v, dims=(1,), keepdim=True), "no longer has the token axis"),
        (lambda v: B.op("tensor.softmax", v, dim=1), "along the token axis"),
        (lambda v: B.op("tensor.cat", v, v, dim=1), "in more than one axis or folded"),
        (lambda v: B.op("tensor.view", v, shape=(2, T, 2)), "reshapes across tokens"),
        (lambda v: B.op("tensor.view", v, shape=(4 * T,)), "folded into one"),
        (lambda v: B.op("tensor.matmul", v, B.op("tensor.permute", v, perm=(0, 2, 1))), "more than one axis"),
        (lambda v: B.op("tensor.add", v, B.op("tensor.view", v, shape=(T, 1, 4))), "more than one axis"),
        (
            lambda v: B.op(
                "tensor.linear",
                B.op("tensor.permute", v, perm=(0, 2, 1)),
                B.op("tensor.full", shape=(3, T), value=1.0, dtype=DType.F32),
            ),
            "token axis",
        ),
        (
            lambda v: B.op(
                "tensor.add", v, B.op("tensor.view", B.op("tensor.arange", stop=T, dtype=DType.F32), shape=(1, T, 1))
            ),
            "order of tokens",
        ),
        (
            lambda v: B.op("tensor.gather_rows", v, B.op("tensor.arange", stop=1, dtype=DType.I32)),
            "table depends on tokens",
        ),
    ],
)
def test_mixing_tokens_is_refused_by_op_and_module(make, reason: str) -> None:
    v = x(1, T, 4)
    with pytest.raises(PassError, match=rf"ragged-tokens: .*model\.layers\.3\.mixer: .*({reason})"):
        RaggedTokens().run(Graph((v,), (make(v),)))


def test_values_without_tokens_stay() -> None:
    v = x(1, T, 4)
    w = B.weight("w", TensorType((1, 4), DType.F32))
    after = same(v, B.op("tensor.mul", v, B.op("tensor.exp", w)))
    assert [n.types[0].shape for n in after.nodes if n.op == "tensor.exp"] == [(1, 4)]


@given(st.data())
def test_any_chain_of_moves_keeps_elements(data: st.DataObject) -> None:
    shape: tuple[object, ...] = (1, T, 2, 3)
    v = value = x(*shape)
    for _ in range(data.draw(st.integers(1, 5))):
        rank = value.type.rank
        kind = data.draw(st.sampled_from(["permute", "split", "mul"]))
        if kind == "permute":
            value = B.op("tensor.permute", value, perm=tuple(data.draw(st.permutations(range(rank)))))
        elif kind == "split" and rank < 6:
            at = data.draw(st.integers(0, rank))
            shape = value.type.shape
            value = B.op("tensor.view", value, shape=(*shape[:at], 1, *shape[at:]))
        else:
            value = B.op("tensor.mul", value, value)
    same(v, value)


def test_short_shapes() -> None:
    node = x(1, T).node
    assert short((1, 4, T, 2), node) == (T, 4, 2)
    assert short((T, 1, 2), node) == (T, 1, 2)
    assert short((2, T), node) == (T, 2)
    assert short((4, 2), node) == (4, 2)
