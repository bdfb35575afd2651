"""merge-qkv: one product for what attention reads."""

from inferir.ir.graph.parser import parse_graph
from inferir.passes.context import PassContext
from inferir.passes.merge.merge_qkv import MergeQkv

BEFORE = """graph @g(%x: f32[T, 8]) -> (%14 as "y") {
  %1 = core.weight {name="q"} : f32[8, 8]
  %2 = core.weight {name="k"} : f32[4, 8]
  %3 = core.weight {name="v"} : f32[4, 8]
  %4 = core.weight {name="o"} : f32[8, 8]
  %5 = tensor.linear(%x, %1) : f32[T, 8] @ "attn.q:linear"
  %6 = tensor.view(%5) {shape=(T, 2, 4)} : f32[T, 2, 4]
  %7 = tensor.linear(%x, %2) : f32[T, 4] @ "attn.k:linear"
  %8 = tensor.view(%7) {shape=(T, 1, 4)} : f32[T, 1, 4]
  %9 = tensor.linear(%x, %3) : f32[T, 4] @ "attn.v:linear"
  %10 = tensor.view(%9) {shape=(T, 1, 4)} : f32[T, 1, 4]
  %11 = attn.attention(%6, %8, %10) {causal=true, layer=0, reads=full_attention, scale=0.5, softcap=0.0} : f32[T, 2, 4]
  %12 = tensor.view(%11) {shape=(T, 8)} : f32[T, 8]
  %13 = tensor.linear(%x, %4) : f32[T, 8] @ "mlp:linear"
  %14 = tensor.add(%12, %13) : f32[T, 8]
}"""
AFTER = """graph @g(%x: f32[T, 8]) -> (%14 as "y") {
  %1 = core.weight {name="q"} : f32[8, 8]
  %2 = core.weight {name="k"} : f32[4, 8]
  %3 = core.weight {name="v"} : f32[4, 8]
  %4 = tensor.cat(%1, %2, %3) {dim=0} : f32[16, 8]
  %5 = tensor.linear(%x, %4) : f32[T, 16]
  %6 = tensor.slice(%5) {dim=1, start=0, step=1, stop=8} : f32[T, 8]
  %7 = tensor.view(%6) {shape=(T, 2, 4)} : f32[T, 2, 4]
  %8 = tensor.slice(%5) {dim=1, start=8, step=1, stop=12} : f32[T, 4]
  %9 = tensor.view(%8) {shape=(T, 1, 4)} : f32[T, 1, 4]
  %10 = tensor.slice(%5) {dim=1, start=12, step=1, stop=16} : f32[T, 4]
  %11 = tensor.view(%10) {shape=(T, 1, 4)} : f32[T, 1, 4]
  %12 = attn.attention(%7, %9, %11) {causal=true, layer=0, reads=full_attention, scale=0.5, softcap=0.0} : f32[T, 2, 4]
  %13 = tensor.view(%12) {shape=(T, 8)} : f32[T, 8]
  %15 = core.weight {name="o"} : f32[8, 8]
  %16 = tensor.linear(%x, %15) : f32[T, 8]
  %14 = tensor.add(%13, %16) : f32[T, 8]
}"""


def test_golden_a_parallel_mlp_stays_apart(golden) -> None:
    golden(MergeQkv(), BEFORE, AFTER, exact=False)


def test_a_bias_on_one_of_them_is_refused() -> None:
    text = BEFORE.replace("(%x: f32[T, 8])", "(%x: f32[T, 8], %b: f32[4])").replace(
        "linear(%x, %2)", "linear(%x, %2, %b)"
    )
    graph = parse_graph(text)
    context = PassContext()
    assert MergeQkv(context).run(graph) is graph
    assert [str(r) for r in context.refusals] == ["merge-qkv: attn.q tensor.linear: some have a bias and some have not"]


def test_a_single_product_stays(golden) -> None:
    text = """graph @g(%x: f32[T, 8]) -> (%3 as "y") {
      %1 = core.weight {name="o"} : f32[4, 8]
      %2 = tensor.linear(%x, %1) : f32[T, 4]
      %3 = tensor.exp(%2) : f32[T, 4]
    }"""
    golden(MergeQkv(), text, text)
