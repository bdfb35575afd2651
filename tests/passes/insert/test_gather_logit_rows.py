"""gather-logit-rows: the tail of the model runs on the rows that are wanted."""

import pytest
import torch

from inferir.ir.errors import PassError
from inferir.ir.graph.graph import Graph, structural_text
from inferir.ir.graph.parser import parse_graph
from inferir.passes.insert.gather_logit_rows import GatherLogitRows

BEFORE = """graph @g(%ids: i32[T], %slots: i32[T], %kcache.0: f32[NB, 1, 8, 4, 1])
    -> (%14 as "logits", %5 as "kcache.0") {
  %1 = core.weight {name="table"} : f32[16, 8]
  %2 = tensor.embedding(%1, %ids) : f32[T, 8]
  %3 = nn.rms_norm(%2) {eps=1e-06, offset=0.0, round_before_weight=true} : f32[T, 8]
  %4 = tensor.view(%2) {shape=(T, 1, 8)} : f32[T, 1, 8]
  %5 = kv.write(%kcache.0, %4, %slots) {block_size=4, role="k"} : f32[NB, 1, 8, 4, 1]
  %6 = core.weight {name="down"} : f32[8, 8]
  %7 = tensor.linear(%3, %6) : f32[T, 8]
  %8 = tensor.add(%2, %7) : f32[T, 8]
  %9 = tensor.mean(%8) {dims=(1), keepdim=true} : f32[T, 1]
  %10 = tensor.sub(%8, %9) : f32[T, 8]
  %11 = tensor.view(%10) {shape=(T, 8)} : f32[T, 8]
  %12 = core.weight {name="head"} : f32[5, 8]
  %13 = tensor.linear(%11, %12) : f32[T, 5]
  %14 = tensor.tanh(%13) : f32[T, 5]
}"""
HEAD = """graph @g(%ids: i32[T], %slots: i32[T], %kcache.0: f32[NB, 1, 8, 4, 1], %rows: i32[R])
    -> (%14 as "logits", %15 as "kcache.0") {
  %1 = core.weight {name="table"} : f32[16, 8]
  %2 = tensor.embedding(%1, %ids) : f32[T, 8]
  %3 = nn.rms_norm(%2) {eps=1e-06, offset=0.0, round_before_weight=true} : f32[T, 8]
  %6 = core.weight {name="down"} : f32[8, 8]
  %7 = tensor.linear(%3, %6) : f32[T, 8]
  %8 = tensor.add(%2, %7) : f32[T, 8]
  %16 = tensor.gather_rows(%8, %rows) : f32[R, 8]
  %9 = tensor.mean(%16) {dims=(1), keepdim=true} : f32[R, 1]
  %10 = tensor.sub(%16, %9) : f32[R, 8]
  %11 = tensor.view(%10) {shape=(R, 8)} : f32[R, 8]
  %12 = core.weight {name="head"} : f32[5, 8]
  %13 = tensor.linear(%11, %12) : f32[R, 5]
  %14 = tensor.tanh(%13) : f32[R, 5]
  %4 = tensor.view(%2) {shape=(T, 1, 8)} : f32[T, 1, 8]
  %15 = kv.write(%kcache.0, %4, %slots) {block_size=4, role="k"} : f32[NB, 1, 8, 4, 1]
}"""
ROWS = torch.tensor([4, 1], dtype=torch.int32)


def ops_on_rows(graph: Graph) -> list[str]:
    return [n.op.split(".")[1] for n in graph.nodes if n.op != "core.input" and str(n.types[0].shape[0:1]) == "(R,)"]


def test_golden_the_gather_stops_at_the_residual_sum() -> None:
    assert structural_text(GatherLogitRows().run(parse_graph(BEFORE))) == structural_text(parse_graph(HEAD))


@pytest.mark.parametrize("through_layer", [False, True])
def test_rows_are_those_of_all_logits(run, through_layer: bool) -> None:
    before = parse_graph(BEFORE)
    after = GatherLogitRows(through_layer).run(before)
    want, got = run(before), run(after, rows=ROWS)
    torch.testing.assert_close(got["logits"], want["logits"][ROWS.long()])
    assert torch.equal(got["kcache.0"], want["kcache.0"])


def test_through_the_layer_up_to_what_caches_need() -> None:
    after = GatherLogitRows(through_layer=True).run(parse_graph(BEFORE))
    assert ops_on_rows(after) == ["gather_rows", "rms_norm", "linear", "add", "mean", "sub", "view", "linear", "tanh"]


def test_half_precision_logits_become_float32() -> None:
    after = GatherLogitRows().run(
        parse_graph(BEFORE.replace("f32", "bf16").replace("[NB, 1, 8, 4, 1]", "[NB, 1, 4, 4, 2]"))
    )
    assert str(after.output("logits").type) == "f32[R, 5]"
    assert after.output("logits").op == "tensor.cast"


def test_a_model_that_is_one_product_gathers_its_input() -> None:
    graph = parse_graph("""graph @g(%ids: i32[T]) -> (%4 as "logits") {
      %1 = core.weight {name="table"} : f32[16, 8]
      %2 = tensor.embedding(%1, %ids) : f32[T, 8]
      %3 = core.weight {name="head"} : f32[5, 8]
      %4 = tensor.linear(%2, %3) : f32[T, 5]
    }""")
    assert ops_on_rows(GatherLogitRows().run(graph)) == ["gather_rows", "linear"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [('"logits"', '"scores"', "no output named 'logits'"), ("%14 as", "%5 as", "expected .T, V.")],
)
def test_other_outputs_are_refused(old: str, new: str, reason: str) -> None:
    text = BEFORE.replace(old, new).replace(', %5 as "kcache.0"', "")
    with pytest.raises(PassError, match=f"gather-logit-rows: .*{reason}"):
        GatherLogitRows().run(parse_graph(text))
