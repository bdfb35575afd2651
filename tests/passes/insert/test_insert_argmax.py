"""insert-argmax: arg-max rows beside logit rows."""

import pytest
import torch

from inferir.ir.graph.graph import Graph, structural_text
from inferir.ir.graph.parser import parse_graph
from inferir.passes.context import PassContext
from inferir.passes.insert.insert_argmax import InsertArgmax

BEFORE = """graph @g(%h: f32[T, 16], %rows: i32[R]) -> (%6 as "logits") {
  %1 = tensor.gather_rows(%h, %rows) : f32[R, 16]
  %2 = core.weight {name="norm"} : f32[16]
  %3 = nn.rms_norm(%1, %2) {eps=1e-06, offset=0.0, round_before_weight=true} : f32[R, 16]
  %4 = core.weight {name="head"} : f32[70, 16]
  %5 = layout.pack_panels(%4) {interleave=1} : f32[2, 16, 64, 1]
  %6 = tensor.linear_packed(%3, %5) {dtype=none, format="panels", interleave=1, n=70} : f32[R, 70]
}"""
AFTER = """graph @g(%h: f32[T, 16], %rows: i32[R], %argmax_rows: i32[G]) -> (%6 as "logits", %10 as "argmax") {
  %1 = tensor.gather_rows(%h, %rows) : f32[R, 16]
  %2 = core.weight {name="norm"} : f32[16]
  %3 = nn.rms_norm(%1, %2) {eps=1e-06, offset=0.0, round_before_weight=true} : f32[R, 16]
  %4 = core.weight {name="head"} : f32[70, 16]
  %5 = layout.pack_panels(%4) {interleave=1} : f32[2, 16, 64, 1]
  %6 = tensor.linear_packed(%3, %5) {dtype=none, format="panels", interleave=1, n=70} : f32[R, 70]
  %7 = tensor.gather_rows(%h, %argmax_rows) : f32[G, 16]
  %8 = nn.rms_norm(%7, %2) {eps=1e-06, offset=0.0, round_before_weight=true} : f32[G, 16]
  %9#0, %9#1, %9#2 = layout.pack_int8_rows(%4) {valid=70} : u8[2, 4, 64, 4], f32[2, 4, 64], f32[2, 16]
  %10 = sample.argmax(%8, %5, %9#0, %9#1, %9#2) {n=70, valid=70} : i32[G]
}"""
VNNI = frozenset({"avx512vnni"})
ROWS = torch.tensor([4, 1, 1], dtype=torch.int32)


def refused(text: str, features: frozenset[str] = VNNI) -> str:
    context = PassContext()
    graph = parse_graph(text)
    assert InsertArgmax(features, context=context).run(graph) is graph
    (refusal,) = context.refusals
    return str(refusal)


def test_golden() -> None:
    assert structural_text(InsertArgmax(VNNI).run(parse_graph(BEFORE))) == structural_text(parse_graph(AFTER))


@pytest.mark.parametrize("valid", [None, 9])
def test_tokens_are_those_of_the_logits(run, valid: int | None) -> None:
    before = parse_graph(BEFORE)
    out = run(InsertArgmax(VNNI, valid).run(before), sources=before, rows=ROWS[:2], argmax_rows=ROWS)
    logits = run(before, rows=ROWS)["logits"]
    assert torch.equal(out["argmax"].long(), logits[:, :valid].argmax(1))
    assert torch.equal(out["logits"], logits[:2])


def test_attributes_with_rows_follow() -> None:
    view = """  %7 = tensor.view(%3) {shape=(R, 4, 4)} : f32[R, 4, 4]
  %8 = tensor.view(%7) {shape=(R, 16)} : f32[R, 16]
  %4 ="""
    before = parse_graph(BEFORE.replace("  %4 =", view, 1).replace("packed(%3", "packed(%8"))
    graph: Graph = InsertArgmax(VNNI).run(before)
    assert [str(n.types[0]) for n in graph.nodes if n.op == "tensor.view"][2:] == ["f32[G, 4, 4]", "f32[G, 16]"]


def test_what_is_refused() -> None:
    capped = BEFORE.replace('%6 as "logits"', '%7 as "logits"').replace(
        "\n}", "\n  %7 = tensor.tanh(%6) : f32[R, 70]\n}"
    )
    assert refused(capped).endswith("logits are not the result of a product with weights")
    assert refused(BEFORE.replace("16]", "12]").replace("[2, 16,", "[2, 12,")).endswith(
        "rows of 12 elements, not a multiple of 16 up to 32768"
    )
    assert refused(BEFORE, frozenset({"avx512f"})).endswith("the target has no avx512vnni")
    other = """  %7#0, %7#1, %7#2 = layout.pack_int8_rows(%4) {valid=none} : u8[2, 4, 64, 4], f32[2, 4, 64], f32[2, 16]
  %6 = tensor.linear_packed(%3, %7#0, %7#1, %7#2) {dtype=none, format="int8_rows", interleave=1, n=70} : f32[R, 70]
}"""
    assert refused(BEFORE[: BEFORE.index("  %5")] + other).endswith("the last matrix is stored as int8_rows")
    layer = """  %7 = core.weight {name="down"} : f32[16, 16]
  %8 = tensor.linear(%3, %7) : f32[R, 16]
  %4 ="""
    text = BEFORE.replace("  %4 =", layer, 1).replace("packed(%3", "packed(%8")
    assert refused(text).endswith("the layer before it runs on gathered rows")
