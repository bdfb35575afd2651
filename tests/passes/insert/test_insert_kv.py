"""insert-kv: captured attention becomes cache writes and paged attention."""

import pytest
import torch

from inferir.ir.errors import PassError
from inferir.ir.graph.graph import structural_text
from inferir.ir.graph.parser import parse_graph
from inferir.passes.insert.insert_kv import InsertKv

BEFORE = """graph @g(%ids: i64[T], %positions: i64[T]) -> (%6 as "y") {
  %1 = core.weight {name="table"} : f32[16, 8]
  %2 = tensor.embedding(%1, %ids) : f32[T, 8]
  %3 = tensor.view(%2) {shape=(T, 2, 4)} : f32[T, 2, 4]
  %4 = tensor.slice(%3) {dim=1, start=1, step=1, stop=2} : f32[T, 1, 4]
  %5 = tensor.exp(%4) : f32[T, 1, 4]
  %6 = attn.attention(%3, %5, %4) {causal=true, layer=3, reads=sliding_window(3), scale=0.5, softcap=2.0}
    : f32[T, 2, 4] @ "layers.3.attn:x"
}"""
AFTER = """graph @g(%ids: i32[T], %positions: i32[T], %slots: i32[T], %block_tables: i32[S, MB], %attn_items: i32[A, 6],
    %kcache.3: f32[NB, 1, 4, 4, 1], %vcache.3: f32[NB, 1, 4, 4, 1]) -> (%8 as "y", %6 as "kcache.3", %7 as "vcache.3") {
  %1 = core.weight {name="table"} : f32[16, 8]
  %2 = tensor.embedding(%1, %ids) : f32[T, 8]
  %3 = tensor.view(%2) {shape=(T, 2, 4)} : f32[T, 2, 4]
  %4 = tensor.slice(%3) {dim=1, start=1, step=1, stop=2} : f32[T, 1, 4]
  %5 = tensor.exp(%4) : f32[T, 1, 4]
  %6 = kv.write(%kcache.3, %5, %slots) {block_size=4, role="k"} : f32[NB, 1, 4, 4, 1]
  %7 = kv.write(%vcache.3, %4, %slots) {block_size=4, role="v"} : f32[NB, 1, 4, 4, 1]
  %8 = attn.paged(%3, %6, %7, %block_tables, %attn_items)
    {block_size=4, kv_heads=1, layer=3, reads=sliding_window(3), scale=0.5, softcap=2.0} : f32[T, 2, 4]
}"""


def test_golden() -> None:
    assert structural_text(InsertKv(4, 16).run(parse_graph(BEFORE))) == structural_text(parse_graph(AFTER))


def test_chunks_of_two_sequences_give_what_whole_sequences_give(run, paged) -> None:
    graph = parse_graph(BEFORE)
    table = torch.randn(16, 8)
    sequences = {"a": [3, 1, 4, 1, 5, 9, 2, 6, 5], "b": [2, 7, 1, 8, 2]}
    whole = {
        k: run(graph, ids=torch.tensor(v), positions=torch.arange(len(v)), table=table)["y"]
        for k, v in sequences.items()
    }
    steps = paged(InsertKv(4, 16).run(graph), {"table": table}, 4)
    got: dict[str, list[torch.Tensor]] = {"a": [], "b": []}
    for chunks in ([("a", 0, 2)], [("b", 0, 3), ("a", 2, 3)], [("a", 3, 8), ("b", 3, 5)], [("a", 8, 9)]):
        out = steps.step([(name, sequences[name][i:j]) for name, i, j in chunks])["y"]
        for name, i, j in chunks:
            got[name].append(out[: j - i])
            out = out[j - i :]
    for name, rows in got.items():
        torch.testing.assert_close(torch.cat(rows), whole[name])


def test_positions_that_are_still_computed_with_are_widened() -> None:
    text = BEFORE.replace('-> (%6 as "y")', '-> (%6 as "y", %7 as "z")').replace(
        "  %6 = ", "  %7 = tensor.add(%positions, %ids) : i64[T]\n  %6 = "
    )
    after = InsertKv(4, 16).run(parse_graph(text))
    assert [v.op for v in after.output("z").node.operands] == ["tensor.cast", "tensor.cast"]
    assert str(after.output("z").type) == "i64[T]"


def test_two_attentions_with_one_layer_number_are_refused() -> None:
    attrs = "causal=true, layer=3, reads=full_attention, scale=0.5, softcap=0.0"
    second = f"  %7 = attn.attention(%6, %5, %4) {{{attrs}}} : f32[T, 2, 4]\n}}"
    text = BEFORE.replace('(%6 as "y")', '(%7 as "y")').rstrip("}") + second
    with pytest.raises(PassError, match=r"insert-kv: attn.attention.*layer 3 has two attentions"):
        InsertKv(4, 16).run(parse_graph(text))


def test_a_cache_that_cannot_pair_tokens_is_refused() -> None:
    with pytest.raises(PassError, match=r"insert-kv: attn.attention in layers.3.attn: block size 3"):
        InsertKv(3, 16).run(parse_graph(BEFORE.replace("f32", "bf16")))
