"""fuse-regions: what becomes one kernel, what does not, and why."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.graph.dims import R, T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Provenance, Value
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph
from inferir.ir.graph.types import TensorType
from inferir.ir.graph.verifier import verify
from inferir.passes.context import PassContext
from inferir.passes.fuse.fuse_regions import FuseRegions

H = 64
B = Builder(Provenance("m"))


def rows(name: str, width: int = H) -> Value:
    return B.input(name, TensorType((T, width), DType.F32))


def op(name: str, *operands: Value, **attrs: object) -> Value:
    return B.op(name if "." in name else f"tensor.{name}", *operands, **attrs)


def linear(x: Value, name: str = "w", interleave: int = 1, n: int = H) -> Value:
    w = B.weight(name, TensorType((n // 64, int(x.type.shape[1]), 64, 1), DType.F32))
    return op("linear_packed", x, w, n=n, interleave=interleave)


def norm(x: Value) -> Value:
    return op("nn.rms_norm", x, eps=1e-6)


def run(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {"T": 3, "R": 2, "NB": 4}

    def draw(t: TensorType) -> torch.Tensor:
        shape = t.concrete(sizes)
        return (
            torch.randn(shape, generator=generator) * 0.3
            if t.dtype is DType.F32
            else torch.zeros(shape, dtype=torch.int32)
        )

    inputs = {str(v.node.attrs["name"]): draw(v.type) for v in graph.inputs}
    weights = {k: draw(graph.weights()[k].type) for k in sorted(graph.weights())}
    return list(interpret(graph, inputs, weights).values())


def fused(*outputs: Value, fuse: bool = True, context: PassContext | None = None) -> list[str]:
    """Names of the kernels for these outputs, after checking that they compute the same."""
    inputs: dict[Value, None] = {}
    stack = list(outputs)
    while stack:
        value = stack.pop()
        stack += value.node.operands
        if value.op == "core.input":
            inputs[value] = None
    graph = Graph(tuple(inputs), outputs)
    after = FuseRegions(fuse, context or PassContext()).run(graph)
    verify(after)
    for got, want in zip(run(after), run(graph), strict=True):
        torch.testing.assert_close(got, want)
    assert {n.op for n in after.nodes} <= {"core.input", "core.weight", "kernel.region"}
    return [n.attrs["name"] for n in after.nodes if n.op == "kernel.region"]


def reasons(context: PassContext) -> str:
    return "\n".join(map(str, context.refusals))


def test_golden() -> None:
    before = parse_graph("""graph @g(%x: f32[T, 64], %r: f32[T, 64]) -> (%5 as "y") {
      %1 = core.weight {name="m.w"} : f32[1, 64, 64, 1]
      %2 = tensor.linear_packed(%x, %1) {dtype=none, format="panels", interleave=1, n=64} : f32[T, 64] @ "m.l:linear"
      %3 = core.weight {name="m.b"} : f32[64]
      %4 = tensor.add(%2, %3) : f32[T, 64] @ "m.l:add"
      %5 = tensor.add(%r, %4) : f32[T, 64] @ "m:add"
    }""")
    after = parse_graph("""graph @g(%x: f32[T, 64], %r: f32[T, 64]) -> (%4 as "y") {
      %1 = core.weight {name="m.w"} : f32[1, 64, 64, 1]
      %3 = core.weight {name="m.b"} : f32[64]
      %4 = kernel.region(%x, %1, %3, %r) {anchor="matmul", name="linear_add", body=
        graph @linear_add(%x0: f32[T, 64], %w0: f32[1, 64, 64, 1], %w1: f32[64], %x1: f32[T, 64]) -> (%3 as "y0") {
          %1 = tensor.linear_packed(%x0, %w0) {dtype=none, format="panels", interleave=1, n=64} : f32[T, 64]
          %2 = tensor.add(%1, %w1) : f32[T, 64]
          %3 = tensor.add(%x1, %2) : f32[T, 64]
        }} : f32[T, 64]
    }""")
    result = FuseRegions().run(before)
    assert result.structural_hash() == after.structural_hash()
    assert result.outputs[0].node.loc == Provenance("m", "linear+add")


def test_without_fusion_every_op_is_a_kernel() -> None:
    x = rows("x")
    assert fused(op("exp", op("cast", op("add", linear(x), x), dtype=DType.F32)), fuse=False) == [
        "linear",
        "add",
        "exp",
    ]


def test_a_product_read_twice_by_its_own_epilogue_fuses() -> None:
    x = linear(rows("x"))
    cubed = op("mul", op("mul", x, x), x)
    assert fused(op("mul", x, op("tanh", op("add", x, cubed)))) == ["linear_mul_add_tanh"]


def test_a_product_read_elsewhere_is_stored_once() -> None:
    x = rows("x")
    y = linear(x)
    context = PassContext()
    assert fused(op("add", op("exp", y), x), linear(y, "v"), context=context) == ["linear", "exp_add", "linear"]
    assert "m tensor.exp behind m tensor.linear_packed: the product would be stored twice" in reasons(context)


def test_a_norm_stays_in_front_of_the_product() -> None:
    x = rows("x")
    context = PassContext()
    assert fused(linear(norm(op("add", linear(x), x)), "v"), context=context) == ["linear_add", "rms_norm", "linear"]
    assert "nn.rms_norm needs more than one element of the product" in reasons(context)


def test_residual_and_norm_share_a_kernel_with_two_results() -> None:
    x, y = rows("x"), rows("y")
    total = op("add", x, norm(y))
    assert fused(op("exp", total), norm(total)) == ["rms_norm_add_exp"]


def test_halves_that_alternate() -> None:
    y = linear(rows("x"), n=128, interleave=2)
    gate, up = (op("slice", y, dim=1, start=a, stop=a + 64) for a in (0, 64))
    bias = B.weight("b", TensorType((64,), DType.F32))
    assert fused(op("nn.gated_act", op("add", gate, bias), up, kind="silu")) == ["linear_add_gated_act"]


def test_halves_side_by_side_are_not_an_epilogue() -> None:
    y = linear(rows("x"), n=128)
    gate, up = (op("slice", y, dim=1, start=a, stop=a + 64) for a in (0, 64))
    context = PassContext()
    assert fused(op("nn.gated_act", gate, up, kind="silu"), context=context) == ["linear", "gated_act"]
    assert "its result has shape [T, 64], not [T, 128]" in reasons(context)


def test_the_sum_of_two_products_goes_to_one_of_them() -> None:
    x = rows("x")
    assert sorted(fused(op("add", op("add", linear(x, "a"), linear(x, "b")), x))) == ["linear", "linear_add"]


def test_a_kernel_in_between_keeps_neighbours_apart() -> None:
    x = rows("x")
    first = op("exp", x)
    second = op("add", first, norm(linear(first)))
    context = PassContext()
    assert fused(second, context=context) == ["exp", "linear", "rms_norm_add"]
    assert "m tensor.add with m tensor.exp: another kernel lies between them" in reasons(context)


def test_an_epilogue_may_not_wait_for_its_own_product() -> None:
    x = rows("x")
    y = linear(x, "a")
    assert fused(op("add", y, linear(norm(y), "b"))) == ["linear", "rms_norm", "linear_add"]


def test_different_rows_stay_apart_and_gathers_read_from_memory() -> None:
    x = rows("x")
    picked = B.input("rows", TensorType((R,), DType.I32))
    context = PassContext()
    assert fused(norm(op("gather_rows", op("exp", x), picked)), context=context) == ["exp", "gather_rms_norm"]
    assert "different rows: T and R" in reasons(context)
    index = B.input("index", TensorType((T,), DType.I32))
    assert fused(norm(op("gather_rows", op("exp", x), index)), context=context) == ["exp", "gather_rms_norm"]
    assert "it is read whole or by index" in reasons(context)


def test_readers_of_one_value_become_one_kernel() -> None:
    y = linear(rows("x"))
    left, right = (op("slice", y, dim=1, start=a, stop=a + 32) for a in (0, 32))
    assert fused(norm(left), op("exp", right)) == ["linear", "rms_norm_exp"]
    x, z = rows("x"), rows("z")
    assert fused(norm(x), op("exp", z)) == ["rms_norm", "exp"], "kernels that share nothing stay apart"


def test_reads_of_position_tables_are_repeated() -> None:
    positions = B.input("positions", TensorType((T,), DType.I32))
    cos = op("embedding", B.weight("cos", TensorType((16, H), DType.F32)), positions)
    x = rows("x")
    first = op("mul", x, cos)
    names = fused(op("mul", norm(linear(first)), cos))
    assert names == ["mul", "linear", "rms_norm_mul"]
    assert fused(cos) == ["embedding"]


def test_views_are_free_but_materialise_where_memory_is_read() -> None:
    x = rows("x")
    heads = op("view", op("exp", x), shape=(T, 4, 16))
    assert fused(op("neg", heads)) == ["exp_neg"]
    cut = op("slice", linear(x, n=128), dim=1, start=64, stop=128)
    assert fused(linear(cut, "v")) == ["linear", "slice", "linear"]
    flat = op("view", op("view", linear(x), shape=(T, 4, 16)), shape=(T, H))
    assert fused(linear(flat, "v")) == ["linear", "linear"]


def test_equal_layers_have_equal_bodies() -> None:
    x = rows("x")
    first = op("add", linear(norm(x), "layers.0.w"), x)
    second = op("add", linear(norm(first), "layers.1.w"), first)
    after = FuseRegions().run(Graph((x,), (second,)))
    hashes = [n.attrs["body"].structural_hash() for n in after.nodes if n.op == "kernel.region"]
    assert len(hashes) == 4
    assert len(set(hashes)) == 2


def test_refusals_name_each_pair_once() -> None:
    x = rows("x")
    context = PassContext()
    fused(norm(linear(x)), context=context)
    assert len(context.refusals) == len(set(context.refusals)) == 1


STEPS: dict[str, Callable[[Value, Value], Value]] = {
    "linear": lambda a, b: linear(a, "w"),
    "other": lambda a, b: linear(a, "v"),
    "norm": lambda a, b: norm(a),
    "add": lambda a, b: op("add", a, b),
    "mul": lambda a, b: op("mul", a, op("tanh", b)),
    "exp": lambda a, b: op("tanh", a),
    "turn": lambda a, b: op("cat", *(op("slice", a, dim=1, start=s, stop=s + 32) for s in (32, 0)), dim=1),
}


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("fuse", [True, False])
def test_any_graph_keeps_its_meaning(fuse: bool, data: st.DataObject) -> None:
    values = [rows("x"), rows("y")]
    for _ in range(data.draw(st.integers(1, 9))):
        a, b = (data.draw(st.sampled_from(values)) for _ in "ab")
        values.append(STEPS[data.draw(st.sampled_from(sorted(STEPS)))](a, b))
    outputs = data.draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique_by=id))
    inputs = tuple(values[:2])
    graph = Graph(inputs, tuple(outputs))
    after = FuseRegions(fuse).run(graph)
    verify(after)
    for got, want in zip(run(after), run(graph), strict=True):
        torch.testing.assert_close(got, want)
    for node in after.nodes:
        if node.op == "kernel.region" and node.attrs["anchor"] == "matmul":
            assert len(node.results) == 1
            assert [n.op for n in node.attrs["body"].nodes].count("tensor.linear_packed") == 1
