"""share-common: equal computations become one value."""

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.types import TensorType
from inferir.passes.canonicalise.cse import ShareCommon


def test_golden(golden) -> None:
    before = """graph @g(%x: f32[T, 4]) -> (%6 as "y") {
      %1 = core.scalar {value=2.0} : f64[]
      %2 = tensor.mul(%x, %1) : f32[T, 4]
      %3 = core.scalar {value=2.0} : f64[]
      %4 = tensor.mul(%x, %3) : f32[T, 4]
      %5 = tensor.exp(%4) : f32[T, 4]
      %6 = tensor.add(%2, %5) : f32[T, 4]
    }"""
    after = """graph @g(%x: f32[T, 4]) -> (%4 as "y") {
      %1 = core.scalar {value=2.0} : f64[]
      %2 = tensor.mul(%x, %1) : f32[T, 4]
      %3 = tensor.exp(%2) : f32[T, 4]
      %4 = tensor.add(%2, %3) : f32[T, 4]
    }"""
    golden(ShareCommon(), before, after)


def test_what_only_looks_equal_stays_apart() -> None:
    b = Builder()
    x = b.input("x", TensorType((T, 4), DType.I32))
    one = b.op("tensor.add", x, b.scalar(1))
    true = b.op("tensor.logical_and", x, b.scalar(True))
    zero, minus = (
        b.op("tensor.cast", b.op("tensor.full", shape=(2,), value=v, dtype=DType.F32), dtype=DType.F32)
        for v in (0.0, -0.0)
    )
    before = Graph((x,), (one, true, zero, minus))
    after = ShareCommon().run(before)
    assert len(after.nodes) == len(before.nodes)


def test_operand_order_matters_and_inputs_stay_apart() -> None:
    b = Builder()
    x, y = (b.input(n, TensorType((T,), DType.F32)) for n in "xy")
    graph = Graph((x, y), (b.op("tensor.sub", x, y), b.op("tensor.sub", y, x)))
    assert ShareCommon().run(graph) is not None
    assert [n.op for n in ShareCommon().run(graph).nodes] == ["core.input", "core.input", "tensor.sub", "tensor.sub"]
