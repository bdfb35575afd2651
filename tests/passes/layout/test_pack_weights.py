"""pack-weights: packed products, separate biases, alternating halves."""

import pytest

from inferir.ir.errors import PassError
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.parser import parse_graph
from inferir.passes.layout.pack_weights import PackWeights

PLAIN = """graph @g(%x: bf16[T, 8], %b: bf16[70]) -> (%2 as "y") {
  %1 = core.weight {name="w"} : bf16[70, 8]
  %2 = tensor.linear(%x, %1, %b) : bf16[T, 70]
}"""
PACKED = """graph @g(%x: bf16[T, 8], %b: bf16[70]) -> (%4 as "y") {
  %1 = core.weight {name="w"} : bf16[70, 8]
  %2 = layout.pack_panels(%1) {interleave=1} : bf16[2, 4, 64, 2]
  %3 = tensor.linear_packed(%x, %2) {dtype=none, format="panels", interleave=1, n=70} : bf16[T, 70]
  %4 = tensor.add(%3, %b) : bf16[T, 70]
}"""
GATED = """graph @g(%x: f32[T, 8]) -> (%6 as "y") {
  %1 = core.weight {name="w"} : f32[40, 8]
  %2 = core.weight {name="b"} : f32[40]
  %3 = tensor.linear(%x, %1, %2) : f32[T, 40]
  %4 = tensor.slice(%3) {dim=1, start=0, step=1, stop=20} : f32[T, 20]
  %5 = tensor.slice(%3) {dim=-1, start=20, step=1, stop=40} : f32[T, 20]
  %6 = nn.gated_act(%4, %5) {kind="silu"} : f32[T, 20]
}"""
ALTERNATING = """graph @g(%x: f32[T, 8]) -> (%11 as "y") {
  %1 = core.weight {name="w"} : f32[40, 8]
  %2 = layout.pack_panels(%1) {interleave=2} : f32[1, 8, 64, 1]
  %3 = tensor.linear_packed(%x, %2) {dtype=none, format="panels", interleave=2, n=40} : f32[T, 40]
  %4 = tensor.slice(%3) {dim=1, start=0, step=1, stop=20} : f32[T, 20]
  %5 = core.weight {name="b"} : f32[40]
  %6 = tensor.slice(%5) {dim=0, start=0, step=1, stop=20} : f32[20]
  %7 = tensor.add(%4, %6) : f32[T, 20]
  %8 = tensor.slice(%3) {dim=-1, start=20, step=1, stop=40} : f32[T, 20]
  %9 = tensor.slice(%5) {dim=0, start=20, step=1, stop=40} : f32[20]
  %10 = tensor.add(%8, %9) : f32[T, 20]
  %11 = nn.gated_act(%7, %10) {kind="silu"} : f32[T, 20]
}"""


def parts(graph: Graph) -> list[int]:
    return [n.attrs["interleave"] for n in graph.nodes if n.op == "tensor.linear_packed"]


def test_golden(golden) -> None:
    golden(PackWeights(), PLAIN.replace("bf16", "f32"), None, exact=False)
    assert PackWeights().run(parse_graph(PLAIN)).structural_hash() == parse_graph(PACKED).structural_hash()


def test_golden_halves_of_a_gated_activation_alternate(golden) -> None:
    golden(PackWeights(), GATED, ALTERNATING, exact=False)


def test_halves_do_not_alternate_without_fusion(golden) -> None:
    assert parts(golden(PackWeights(interleave=False), GATED, None, exact=False)) == [1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("start=20, step=1, stop=40", "start=0, step=1, stop=20"),  # the same half twice
        ('(%6 as "y")', '(%6 as "y", %4 as "z")'),
        ('(%6 as "y")', '(%6 as "y", %3 as "z")'),
        ('nn.gated_act(%4, %5) {kind="silu"}', "tensor.maximum(%4, %5)"),
    ],
)
def test_other_readers_keep_the_plain_order(golden, old: str, new: str) -> None:
    assert parts(golden(PackWeights(), GATED.replace(old, new), None, exact=False)) == [1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PLAIN.replace("8]", "7]"), "K = 7 is not a multiple of 2"),
        (PLAIN.replace("bf16[T, 8]", "bf16[T, 3, 8]").replace("bf16[T, 70]", "bf16[T, 3, 70]"), "only rows of vectors"),
    ],
)
def test_what_cannot_be_packed_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PassError, match=f"pack-weights: tensor.linear in the graph: .*{reason}"):
        PackWeights().run(parse_graph(text))
