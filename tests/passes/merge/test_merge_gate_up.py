"""merge-gate-up: one product for gate and up."""

import pytest

from inferir.ir.graph.parser import parse_graph
from inferir.passes.context import PassContext
from inferir.passes.merge.merge_gate_up import MergeGateUp

BEFORE = """graph @g(%x: f32[T, 8]) -> (%5 as "y") {
  %1 = core.weight {name="gate"} : f32[6, 8]
  %2 = core.weight {name="up"} : f32[6, 8]
  %3 = tensor.linear(%x, %1) : f32[T, 6] @ "mlp.gate:linear"
  %4 = tensor.linear(%x, %2) : f32[T, 6] @ "mlp.up:linear"
  %5 = nn.gated_act(%3, %4) {kind="silu"} : f32[T, 6] @ "mlp:mul"
}"""
AFTER = """graph @g(%x: f32[T, 8]) -> (%7 as "y") {
  %1 = core.weight {name="gate"} : f32[6, 8]
  %2 = core.weight {name="up"} : f32[6, 8]
  %3 = tensor.cat(%1, %2) {dim=0} : f32[12, 8]
  %4 = tensor.linear(%x, %3) : f32[T, 12]
  %5 = tensor.slice(%4) {dim=1, start=0, step=1, stop=6} : f32[T, 6]
  %6 = tensor.slice(%4) {dim=1, start=6, step=1, stop=12} : f32[T, 6]
  %7 = nn.gated_act(%5, %6) {kind="silu"} : f32[T, 6]
}"""


def test_golden(golden) -> None:
    graph = golden(MergeGateUp(), BEFORE, AFTER, exact=False)
    linear = next(n for n in graph.nodes if n.op == "tensor.linear")
    assert linear.loc.module == "mlp"


def test_biases_are_joined_too(golden) -> None:
    text = BEFORE.replace("linear(%x, %1)", "linear(%x, %1, %b)").replace("linear(%x, %2)", "linear(%x, %2, %c)")
    text = text.replace("(%x: f32[T, 8])", "(%x: f32[T, 8], %b: f32[6], %c: f32[6])")
    graph = golden(MergeGateUp(), text, None, exact=False)
    assert [n.op for n in graph.nodes].count("tensor.cat") == 2


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("tensor.linear(%x, %2)", "tensor.linear(%x, %2, %b)", "some have a bias"),
        ("tensor.linear(%x, %2)", "tensor.linear(%z, %2)", "different values"),
        ('(%5 as "y")', '(%5 as "y", %4 as "z")', "other readers"),
    ],
)
def test_refusals_are_recorded(old: str, new: str, reason: str) -> None:
    text = BEFORE.replace("(%x: f32[T, 8])", "(%x: f32[T, 8], %b: f32[6], %z: f32[T, 8])").replace(old, new)
    graph = parse_graph(text)
    context = PassContext()
    assert MergeGateUp(context).run(graph) is graph
    (refusal,) = context.refusals
    assert reason in refusal.reason
    assert str(refusal).startswith("merge-gate-up: mlp nn.gated_act: ")
