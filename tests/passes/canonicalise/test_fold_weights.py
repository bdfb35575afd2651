"""fold-weights: computations on weights become weights with transforms."""

import pytest
import torch

from inferir.ir.graph.graph import structural_text
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.parser import parse_graph
from inferir.passes.canonicalise.fold_weights import FoldWeights
from inferir.passes.context import PassContext

BEFORE = """graph @g(%x: f32[T, 8], %ids: i32[T]) -> (%9 as "y", %10 as "z") {
  %1 = core.weight {name="model.layers.0.attn.q.weight"} : f32[6, 8]
  %2 = core.weight {name="model.layers.0.attn.k.weight"} : f32[6, 8]
  %3 = tensor.cat(%1, %2) {dim=0} : f32[12, 8]
  %4 = layout.pack_panels(%3) {interleave=1} : f32[1, 8, 64, 1]
  %5 = tensor.linear_packed(%x, %4) {dtype=none, format="panels", interleave=1, n=12} : f32[T, 12]
  %6 = tensor.arange {dtype=f32, start=0, step=1, stop=12} : f32[12]
  %7 = tensor.cos(%6) : f32[12]
  %8 = tensor.view(%7) {shape=(1, 12)} : f32[1, 12]
  %9 = tensor.mul(%5, %8) : f32[T, 12]
  %10 = tensor.embedding(%1, %ids) : f32[T, 8]
}"""
AFTER = """graph @g(%x: f32[T, 8], %ids: i32[T]) -> (%9 as "y", %10 as "z") {
  %4 = core.weight {name="model.layers.0.attn.q+k.panels"} : f32[1, 8, 64, 1]
  %5 = tensor.linear_packed(%x, %4) {dtype=none, format="panels", interleave=1, n=12} : f32[T, 12]
  %8 = core.weight {name="constant.cos"} : f32[1, 12]
  %9 = tensor.mul(%5, %8) : f32[T, 12]
  %1 = core.weight {name="model.layers.0.attn.q.weight"} : f32[6, 8]
  %10 = tensor.embedding(%1, %ids) : f32[T, 8]
}"""


def test_golden(run) -> None:
    context = PassContext()
    before = parse_graph(BEFORE)
    after = FoldWeights(context).run(before)
    assert structural_text(after) == structural_text(parse_graph(AFTER))
    assert list(context.transforms) == ["model.layers.0.attn.q+k.panels", "constant.cos"]
    want, got = run(before), run(after, transforms=context.transforms, sources=before)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor)


def test_transforms_read_checkpoint_weights_only() -> None:
    context = PassContext()
    FoldWeights(context).run(parse_graph(BEFORE))
    transform = context.transforms["model.layers.0.attn.q+k.panels"]
    assert set(transform.weights()) == {"model.layers.0.attn.q.weight", "model.layers.0.attn.k.weight"}
    assert transform.inputs == ()
    out = interpret(context.transforms["constant.cos"], {})["value"]
    torch.testing.assert_close(out, torch.arange(12.0).cos()[None])


def test_equal_names_are_numbered() -> None:
    context = PassContext()
    FoldWeights(context).run(
        parse_graph("""graph @g(%x: f32[T, 4]) -> (%4 as "y", %5 as "z") {
      %1 = core.weight {name="w"} : f32[4]
      %2 = tensor.exp(%1) : f32[4]
      %6 = tensor.cast(%2) {dtype=f64} : f64[4]
      %3 = tensor.exp(%2) : f32[4]
      %4 = tensor.mul(%x, %2) : f32[T, 4]
      %5 = tensor.mul(%x, %3) : f32[T, 4]
    }""")
    )
    assert list(context.transforms) == ["w.exp", "w.exp.2"]


def test_numbers_and_plain_weights_are_not_folded() -> None:
    graph = parse_graph("""graph @g(%x: f32[T, 4]) -> (%4 as "y") {
      %1 = core.weight {name="w"} : f32[4]
      %2 = core.scalar {value=2.0} : f64[]
      %3 = tensor.mul(%x, %1) : f32[T, 4]
      %4 = tensor.mul(%3, %2) : f32[T, 4]
    }""")
    context = PassContext()
    assert FoldWeights(context).run(graph) is graph
    assert not context.transforms


@pytest.mark.parametrize("rows", ["T", "R"])
def test_filled_rows_are_no_weights(rows: str) -> None:
    text = """graph @g(%x: f32[T, 4]) -> (%2 as "y") {
      %1 = tensor.full {dtype=f32, shape=(T, 4), value=1.0} : f32[T, 4]
      %2 = tensor.maximum(%x, %1) : f32[T, 4]
    }"""
    graph = parse_graph(text.replace("T", rows))
    assert FoldWeights().run(graph) is graph
