"""recognise-rotary: whole, partial and offset heads; float32 rotation of half-precision heads."""

import pytest

from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph, Value
from inferir.ir.graph.types import TensorType
from inferir.passes.canonicalise.canonicalise import Canonicalise
from inferir.passes.recognise.recognise_rotary import RecogniseRotary

B = Builder()

BEFORE = """graph @g(%x: f32[T, 2, 8], %c: f32[T, 8], %s: f32[T, 8]) -> (%9 as "y") {
  %1 = tensor.view(%c) {shape=(T, 1, 8)} : f32[T, 1, 8]
  %2 = tensor.mul(%x, %1) : f32[T, 2, 8]
  %3 = tensor.slice(%x) {dim=2, start=4, step=1, stop=8} : f32[T, 2, 4]
  %4 = tensor.neg(%3) : f32[T, 2, 4]
  %5 = tensor.slice(%x) {dim=2, start=0, step=1, stop=4} : f32[T, 2, 4]
  %6 = tensor.cat(%4, %5) {dim=2} : f32[T, 2, 8]
  %7 = tensor.view(%s) {shape=(T, 1, 8)} : f32[T, 1, 8]
  %8 = tensor.mul(%6, %7) : f32[T, 2, 8]
  %9 = tensor.add(%2, %8) : f32[T, 2, 8]
}"""
AFTER = """graph @g(%x: f32[T, 2, 8], %c: f32[T, 8], %s: f32[T, 8]) -> (%1 as "y") {
  %1 = nn.rotary(%x, %c, %s) {style="half"} : f32[T, 2, 8]
}"""


def test_golden(golden) -> None:
    golden(RecogniseRotary(), BEFORE, AFTER)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("start=4, step=1, stop=8", "start=0, step=1, stop=4"),  # the same half twice
        ("tensor.neg(%3)", "tensor.exp(%3)"),
        ("tensor.add(%2, %8)", "tensor.sub(%2, %8)"),
        ("tensor.cat(%4, %5)", "tensor.cat(%5, %4)"),
    ],
)
def test_what_is_no_rotation_stays(golden, old: str, new: str) -> None:
    text = BEFORE.replace(old, new)
    assert text != BEFORE
    golden(RecogniseRotary(), text, text)


def rotated(x: Value, cos: Value, sin: Value, widen: bool = False) -> Value:
    d = cos.type.shape[-1]
    assert isinstance(d, int)
    high, low = (B.op("tensor.slice", x, dim=-1, start=a, stop=b) for a, b in ((d // 2, d), (0, d // 2)))
    turned = B.op("tensor.cat", B.op("tensor.neg", high), low, dim=-1)
    if widen:
        x, turned = (B.op("tensor.cast", v, dtype=DType.F32) for v in (x, turned))
    c, s = (B.op("tensor.view", v, shape=(T, 1, d)) for v in (cos, sin))
    return B.op("tensor.add", B.op("tensor.mul", turned, s), B.op("tensor.mul", c, x))


def tables(d: int) -> tuple[Value, Value]:
    cos, sin = (B.input(n, TensorType((T, d), DType.F32)) for n in ("cos", "sin"))
    return cos, sin


def check(run, graph: Graph, ops: list[str]) -> None:
    graph = Canonicalise().run(graph)
    after = RecogniseRotary().run(graph)
    assert [n.op for n in after.nodes if n.op != "core.input"] == ops
    assert (run(graph)["y"] == run(after)["y"]).all()


def test_part_of_a_head(run) -> None:
    cos, sin = tables(4)
    x = B.input("x", TensorType((T, 2, 10), DType.F32))
    head, tail = (B.op("tensor.slice", x, dim=2, start=a, stop=b) for a, b in ((0, 4), (4, 10)))
    y = B.op("tensor.cat", rotated(head, cos, sin), tail, dim=2)
    check(run, Graph((x, cos, sin), (y,), ("y",)), ["nn.rotary"])


def test_part_of_one_of_several_heads_side_by_side(run) -> None:
    cos, sin = tables(4)
    x = B.input("x", TensorType((T, 2, 24), DType.F32))
    key = B.op("tensor.slice", x, dim=2, start=8, stop=16)
    head, tail = (B.op("tensor.slice", key, dim=2, start=a, stop=b) for a, b in ((0, 4), (4, 8)))
    y = B.op("tensor.cat", rotated(head, cos, sin), tail, dim=2)
    check(run, Graph((x, cos, sin), (y,), ("y",)), ["tensor.slice", "nn.rotary"])


def test_float32_rotation_of_half_precision_heads(run) -> None:
    cos, sin = tables(8)
    x = B.input("x", TensorType((T, 2, 8), DType.BF16))
    check(run, Graph((x, cos, sin), (rotated(x, cos, sin, widen=True),), ("y",)), ["tensor.cast", "nn.rotary"])


def test_an_overlapping_tail_is_not_partial(run) -> None:
    cos, sin = tables(4)
    x = B.input("x", TensorType((T, 2, 10), DType.F32))
    head, tail = (B.op("tensor.slice", x, dim=2, start=a, stop=b) for a, b in ((0, 4), (3, 9)))
    graph = Canonicalise().run(
        Graph((x, cos, sin), (B.op("tensor.cat", rotated(head, cos, sin), tail, dim=2),), ("y",))
    )
    after = RecogniseRotary().run(graph)
    assert after.outputs[0].op == "tensor.cat"
    assert (run(graph)["y"] == run(after)["y"]).all()
