"""canonicalise: identities vanish, chains join, powers become products."""

import pytest
import torch

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.passes.canonicalise.canonicalise import Canonicalise

B = Builder()


def reduced(x: Value, y: Value) -> list[str]:
    graph = Canonicalise().run(Graph((x,), (y,)))
    given = torch.randn(3, *x.type.shape[1:]).to(torch.bfloat16 if x.type.dtype is DType.BF16 else torch.float32)
    want = interpret(Graph((x,), (y,)), {"x": given})["out0"]
    got = interpret(graph, {"x": given})["out0"]
    assert torch.equal(want, got)
    return [n.op.removeprefix("tensor.") for n in graph.nodes if not n.op.startswith("core.")]


def x(*shape: int, dtype: DType = DType.F32) -> Value:
    return B.input("x", TensorType((T, *shape), dtype))


def cast(v: Value, dtype: DType) -> Value:
    return B.op("tensor.cast", v, dtype=dtype)


def test_golden(golden) -> None:
    before = """graph @g(%x: f32[T, 4]) -> (%5 as "y") {
      %1 = tensor.view(%x) {shape=(T, 2, 2)} : f32[T, 2, 2]
      %2 = tensor.view(%1) {shape=(T, 1, 4)} : f32[T, 1, 4]
      %3 = core.scalar {value=2} : i64[]
      %4 = tensor.pow(%2, %3) : f32[T, 1, 4]
      %5 = tensor.cast(%4) {dtype=f32} : f32[T, 1, 4]
    }"""
    after = """graph @g(%x: f32[T, 4]) -> (%2 as "y") {
      %1 = tensor.view(%x) {shape=(T, 1, 4)} : f32[T, 1, 4]
      %2 = tensor.mul(%1, %1) : f32[T, 1, 4]
    }"""
    golden(Canonicalise(), before, after)


def test_chains_of_permutes_join_and_moves_of_unit_axes_are_views() -> None:
    v = x(2, 3)
    turned = B.op("tensor.permute", B.op("tensor.permute", v, perm=(1, 0, 2)), perm=(2, 0, 1))
    assert reduced(v, turned) == ["permute"]
    back = B.op("tensor.permute", B.op("tensor.permute", v, perm=(1, 0, 2)), perm=(1, 0, 2))
    assert reduced(v, back) == []
    u = x(1, 3)
    assert reduced(u, B.op("tensor.permute", u, perm=(1, 0, 2))) == ["view"]


def test_lossless_casts_join_and_rounding_casts_stay() -> None:
    v = x(4, dtype=DType.BF16)
    assert reduced(v, cast(cast(v, DType.F32), DType.BF16)) == []
    w = x(4)
    assert reduced(w, cast(cast(w, DType.BF16), DType.F32)) == ["cast", "cast"]


def test_slices_of_slices_and_of_concatenations() -> None:
    v = x(8)
    cut = B.op("tensor.slice", B.op("tensor.slice", v, dim=1, start=2, stop=8), dim=-1, start=1, stop=3)
    assert reduced(v, cut) == ["slice"]
    joined = B.op("tensor.cat", v, B.op("tensor.neg", v), dim=1)
    assert reduced(v, B.op("tensor.slice", joined, dim=1, start=8, stop=16)) == ["neg"]
    assert reduced(v, B.op("tensor.slice", joined, dim=1, start=1, stop=3)) == ["slice"]
    assert reduced(v, B.op("tensor.slice", joined, dim=1, start=6, stop=10)) == ["neg", "cat", "slice"]


def test_empty_parts_of_a_concatenation_go() -> None:
    v = x(4)
    empty = B.op("tensor.slice", v, dim=1, start=4, stop=4)
    assert reduced(v, B.op("tensor.cat", B.op("tensor.neg", v), empty, dim=1)) == ["neg"]


@pytest.mark.parametrize(
    ("op", "number", "left"),
    [
        ("mul", 1.0, False),
        ("mul", 1, True),
        ("add", 0.0, True),
        ("sub", 0, False),
        ("div", 1.0, False),
        ("pow", 1, False),
    ],
)
def test_neutral_numbers(op: str, number: float, left: bool) -> None:
    v, s = x(4), B.scalar(number)
    assert reduced(v, B.op(f"tensor.{op}", *((s, v) if left else (v, s)))) == []


@pytest.mark.parametrize(
    ("op", "number", "left"), [("sub", 0, True), ("div", 1.0, True), ("mul", 0.0, False), ("add", 1, False)]
)
def test_other_numbers_stay(op: str, number: float, left: bool) -> None:
    v, s = x(4), B.scalar(number)
    assert reduced(v, B.op(f"tensor.{op}", *((s, v) if left else (v, s)))) == [op]


def test_powers() -> None:
    v = B.op("tensor.abs", x(4))
    source = v.node.operands[0]
    for exponent, ops in (
        (2, ["mul"]),
        (3.0, ["mul", "mul"]),
        (0.5, ["sqrt"]),
        (-0.5, ["rsqrt"]),
        (-1, ["reciprocal"]),
        (1.5, ["pow"]),
    ):
        graph = Canonicalise().run(Graph((source,), (B.op("tensor.pow", v, B.scalar(exponent)),)))
        assert [n.op.removeprefix("tensor.") for n in graph.nodes if n.op[:4] != "core"] == ["abs", *ops]


def test_products_with_a_static_matrix_become_linear(golden) -> None:
    before = """graph @g(%x: f32[1, T, 4]) -> (%2 as "y") {
      %1 = core.weight {name="w"} : f32[4, 3]
      %2 = tensor.matmul(%x, %1) : f32[1, T, 3]
    }"""
    after = """graph @g(%x: f32[1, T, 4]) -> (%3 as "y") {
      %1 = core.weight {name="w"} : f32[4, 3]
      %2 = tensor.permute(%1) {perm=(1, 0)} : f32[3, 4]
      %3 = tensor.linear(%x, %2) : f32[1, T, 3]
    }"""
    golden(Canonicalise(), before, after, exact=False)


def test_broadcasting_replaces_expand_and_filled_tensors(golden) -> None:
    before = """graph @g(%x: f32[T, 4], %c: f32[T, 1]) -> (%4 as "y") {
      %1 = tensor.expand(%c) {shape=(T, 4)} : f32[T, 4]
      %2 = tensor.mul(%x, %1) : f32[T, 4]
      %3 = tensor.full {dtype=f32, shape=(T, 4), value=2.0} : f32[T, 4]
      %4 = tensor.add(%2, %3) : f32[T, 4]
    }"""
    after = """graph @g(%x: f32[T, 4], %c: f32[T, 1]) -> (%3 as "y") {
      %1 = tensor.mul(%x, %c) : f32[T, 4]
      %2 = core.scalar {value=2.0} : f64[]
      %3 = tensor.add(%1, %2) : f32[T, 4]
    }"""
    golden(Canonicalise(), before, after)


def test_an_expand_that_gives_the_shape_stays() -> None:
    v = x(1)
    wide = B.op("tensor.expand", v, shape=(T, 4))
    assert reduced(v, B.op("tensor.mul", wide, wide)) == ["expand", "mul"]


def test_a_canonical_graph_is_returned_as_it_is() -> None:
    v = x(4)
    graph = Graph((v,), (B.op("tensor.exp", v),))
    assert Canonicalise().run(graph) is graph


def test_a_cube_in_half_precision_stays_a_power() -> None:
    v = x(4, dtype=DType.BF16)
    assert reduced(v, B.op("tensor.pow", v, B.scalar(3))) == ["pow"]
    assert reduced(v, B.op("tensor.pow", v, B.scalar(2))) == ["mul"]
