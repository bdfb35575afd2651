"""elide-roundings: float32 inside kernels, captured types at their borders."""

import torch
from small_limits import limits

from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.parser import parse_graph
from inferir.passes.canonicalise.elide_roundings import ElideRoundings
from inferir.passes.context import PassOptions
from inferir.passes.manager import run_pipeline

MATMUL = """graph @g(%a: bf16[T, 8], %w: bf16[1, 4, 64, 2], %r: bf16[T, 16]) -> (%1 as "y") {
  %1 = kernel.region(%a, %w, %r) {anchor="matmul", name="linear_gated_act_add", body=
    graph @linear_gated_act_add(%x0: bf16[T, 8], %w0: bf16[1, 4, 64, 2], %x1: bf16[T, 16]) -> (%5 as "y0") {
      %1 = tensor.linear_packed(%x0, %w0) {dtype=none, format="panels", interleave=2, n=32} : bf16[T, 32]
      %2 = tensor.slice(%1) {dim=1, start=0, step=1, stop=16} : bf16[T, 16]
      %3 = tensor.slice(%1) {dim=1, start=16, step=1, stop=32} : bf16[T, 16]
      %4 = nn.gated_act(%2, %3) {kind="silu"} : bf16[T, 16]
      %5 = tensor.add(%4, %x1) : bf16[T, 16]
    }} : bf16[T, 16]
}"""
WIDE = """graph @g(%a: bf16[T, 8], %w: bf16[1, 4, 64, 2], %r: bf16[T, 16]) -> (%1 as "y") {
  %1 = kernel.region(%a, %w, %r) {anchor="matmul", name="linear_gated_act_add", body=
    graph @linear_gated_act_add(%x0: bf16[T, 8], %w0: bf16[1, 4, 64, 2], %x1: bf16[T, 16]) -> (%7 as "y0") {
      %1 = tensor.linear_packed(%x0, %w0) {dtype=f32, format="panels", interleave=2, n=32} : f32[T, 32]
      %2 = tensor.slice(%1) {dim=1, start=0, step=1, stop=16} : f32[T, 16]
      %3 = tensor.slice(%1) {dim=1, start=16, step=1, stop=32} : f32[T, 16]
      %4 = nn.gated_act(%2, %3) {kind="silu"} : f32[T, 16]
      %5 = tensor.cast(%x1) {dtype=f32} : f32[T, 16]
      %6 = tensor.add(%4, %5) : f32[T, 16]
      %7 = tensor.cast(%6) {dtype=bf16} : bf16[T, 16]
    }} : bf16[T, 16]
}"""
ROWWISE = """graph @g(%a: bf16[T, 8], %table: bf16[9, 8], %n: bf16[8], %ids: i32[T], %slots: i32[T],
    %cache: bf16[NB, 1, 4, 4, 2]) -> (%1#0 as "x", %1#1 as "y", %1#2 as "c", %1#3 as "m") {
  %1#0, %1#1, %1#2, %1#3 = kernel.region(%a, %table, %n, %ids, %slots, %cache) {anchor="rowwise", name="r", body=
    graph @r(%a: bf16[T, 8], %table: bf16[9, 8], %n: bf16[8], %ids: i32[T], %slots: i32[T],
        %cache: bf16[NB, 1, 4, 4, 2]) -> (%2 as "x", %6 as "y", %8 as "c", %10 as "m") {
      %1 = tensor.embedding(%table, %ids) : bf16[T, 8]
      %2 = tensor.add(%a, %1) : bf16[T, 8]
      %3 = tensor.cast(%2) {dtype=f32} : f32[T, 8]
      %4 = tensor.exp(%3) : f32[T, 8]
      %5 = tensor.cast(%4) {dtype=bf16} : bf16[T, 8]
      %6 = nn.rms_norm(%5, %n) {eps=1e-06, offset=0.0, round_before_weight=true} : bf16[T, 8]
      %7 = tensor.view(%6) {shape=(T, 1, 8)} : bf16[T, 1, 8]
      %8 = kv.write(%cache, %7, %slots) {block_size=4, role="k"} : bf16[NB, 1, 4, 4, 2]
      %9 = core.scalar {value=0.0} : f64[]
      %10 = tensor.gt(%2, %9) : bool[T, 8]
    }} : bf16[T, 8], bf16[T, 8], bf16[NB, 1, 4, 4, 2], bool[T, 8]
}"""


def body(graph: Graph) -> Graph:
    (region,) = [n for n in graph.nodes if n.op == "kernel.region"]
    return region.attrs["body"]


def test_golden(run) -> None:
    before = parse_graph(MATMUL)
    after = ElideRoundings().run(before)
    assert after.structural_hash() == parse_graph(WIDE).structural_hash()
    torch.testing.assert_close(run(after)["y"].float(), run(before)["y"].float(), rtol=0.03, atol=0.03)


def test_what_a_kernel_returns_keeps_its_type(run) -> None:
    before = parse_graph(ROWWISE)
    after = ElideRoundings().run(before)
    assert [v.type for v in after.outputs] == [v.type for v in before.outputs]
    inner = body(after)
    half = {n.op for n in inner.nodes if n.types[0].dtype is DType.BF16}
    assert half == {"core.input", "tensor.embedding", "tensor.cast", "kv.write"}
    ids = torch.tensor([8, 0, 3, 3, 1], dtype=torch.int32)
    slots = torch.tensor([4, 9, 30, 31, 5], dtype=torch.int32)
    want, got = run(before, ids=ids, slots=slots), run(after, ids=ids, slots=slots)
    for name in "xycm":
        torch.testing.assert_close(got[name].float(), want[name].float(), rtol=0.03, atol=0.03)


COMPARED = """graph @g(%a: bf16[T, 8]) -> (%1 as "y") {
  %1 = kernel.region(%a) {anchor="rowwise", name="r", body=
    graph @r(%a: bf16[T, 8]) -> (%5 as "y") {
      %1 = core.scalar {value=0.1} : f64[]
      %2 = tensor.le(%a, %1) : bool[T, 8]
      %3 = tensor.mul(%a, %1) : bf16[T, 8]
      %4 = tensor.neg(%3) : bf16[T, 8]
      %5 = tensor.where(%2, %3, %4) : bf16[T, 8]
    }} : bf16[T, 8]
}"""


def test_a_half_precision_value_is_compared_with_what_it_could_hold_itself(run) -> None:
    before = parse_graph(COMPARED)
    after = ElideRoundings().run(before)
    numbers = {
        u.op: n.attrs["value"] for n in body(after).nodes if n.op == "core.scalar" for u in users(body(after), n)
    }
    assert numbers == {"tensor.le": 0.10009765625, "tensor.mul": 0.1}
    a = torch.full((3, 8), 0.1, dtype=torch.bfloat16)
    torch.testing.assert_close(run(after, a=a)["y"], run(before, a=a)["y"], rtol=0.01, atol=0)
    assert bool((run(after, a=a)["y"] > 0).all())


def users(graph: Graph, node: Node) -> list[Node]:
    return graph.users()[node.result]


def test_casts_there_and_back_are_gone() -> None:
    inner = body(ElideRoundings().run(parse_graph(ROWWISE)))
    (norm,) = [n for n in inner.nodes if n.op == "nn.rms_norm"]
    assert norm.operands[0].op == "tensor.exp", "the row is not rounded between exp and norm"
    assert norm.operands[1].op == "core.input", "the weight is read as stored"


def test_float32_regions_do_not_change() -> None:
    graph = parse_graph(MATMUL.replace("bf16", "f32").replace("[1, 4, 64, 2]", "[1, 8, 64, 1]"))
    assert ElideRoundings().run(graph) is graph


def test_nearer_to_float32_than_the_captured_model(tiny, paged, with_weights) -> None:
    model, exact = (tiny(layers=3, dtype=dtype) for dtype in (DType.BF16, DType.F32))
    result = run_pipeline(model.graph, None, PassOptions(limits=limits(max_model_len=16, block_size=4, max_rows=16)))
    ours = theirs = 0.0
    for seed in range(4):
        model.randomise(seed)
        exact.weights = {name: tensor.float() for name, tensor in model.weights.items()}
        tokens = [(7 * i + 3 * seed) % 40 for i in range(16)]
        truth = exact.logits(tokens)
        steps = paged(result.graph, with_weights(model.weights, result.transforms), 4)
        ours += float((steps.step([("a", tokens)], rows=range(16))["logits"] - truth).norm())
        theirs += float((model.logits(tokens) - truth).norm())
    assert ours < 0.85 * theirs
