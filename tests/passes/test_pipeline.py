"""After every pass, steps of chunked sequences give what the captured graph gives for whole ones."""

import pytest
import torch
from small_limits import limits

from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph
from inferir.passes.context import PassContext, PassOptions
from inferir.passes.manager import run_passes, run_pipeline
from inferir.passes.pipeline import build_pipeline, pass_names

SEQUENCES = {"a": [3, 14, 15, 9, 26, 5, 35, 8, 9], "b": [27, 18, 28, 18, 2]}
STEPS = ([("a", 0, 4)], [("b", 0, 3), ("a", 4, 5)], [("a", 5, 8), ("b", 3, 4)], [("a", 8, 9), ("b", 4, 5)])


def options(level: int, **changes) -> PassOptions:
    return PassOptions(
        opt_level=level,
        limits=limits(max_model_len=16, max_tokens=8, max_seqs=2, block_size=4),
        **{"features": frozenset({"avx512vnni"}), **changes},
    )


def assert_near(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    """The difference is small beside the logits (half precision has outliers in single elements)."""
    assert ((got - want).norm() / want.norm()).item() < tolerance


def check_paged(steps, whole: dict[str, torch.Tensor], gathered: bool, tolerance: float) -> None:
    for chunks in STEPS:
        out = steps.step([(name, SEQUENCES[name][i:j]) for name, i, j in chunks])
        row = -1
        for k, (name, i, j) in enumerate(chunks):
            row += j - i
            got = out["logits"][k if gathered else row].float()
            assert_near(got, whole[name][j - 1], tolerance)
        if "tokens" in out:
            assert out["tokens"].tolist() == out["logits"].argmax(-1).tolist()
        if "argmax" in out:  # before roundings are elided, logits of half precision may be equal
            best = out["logits"].gather(1, out["argmax"].long()[:, None])[:, 0]
            assert torch.equal(best, out["logits"].amax(-1))


def check_whole(model, graph: Graph, whole: dict[str, torch.Tensor], tolerance: float) -> None:
    before, model.graph = model.graph, graph
    for name, tokens in SEQUENCES.items():
        assert_near(model.logits(tokens).float(), whole[name], tolerance)
    model.graph = before


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(DType.F32, 1e-5), (DType.BF16, 0.05)])
@pytest.mark.parametrize("variant", [{}, {"shifted_norms": True}, {"bias": True}])
def test_every_prefix_computes_the_same(
    tiny, paged, with_weights, level: int, dtype: DType, tolerance: float, variant
) -> None:
    model = tiny(dtype=dtype, **variant)
    whole = {name: model.logits(tokens) for name, tokens in SEQUENCES.items()}
    context = PassContext()
    seen = []

    def check(name: str, graph: Graph) -> None:
        seen.append(name)
        weights = with_weights(model.weights, context.transforms)
        if not context.kv:
            check_whole(model, graph, whole, tolerance)
        else:
            check_paged(paged(graph, weights, 4), whole, "rows" in graph.input_names, tolerance)

    run_passes(model.graph, build_pipeline(options(level), context), print_after=check)
    assert set(seen) == {p.name for p in build_pipeline(options(level), PassContext())}


def test_kernels_at_level_2(tiny) -> None:
    result = run_pipeline(tiny(layers=1).graph, None, options(2))
    assert [(p.region.attrs["anchor"], p.region.attrs["name"]) for p in result.plan.ops] == [
        ("rowwise", "embedding_rms_norm"),
        ("matmul", "linear"),
        ("rowwise", "rotary_kv_write"),
        ("attention", "attention"),
        ("matmul", "linear_add"),
        ("rowwise", "rms_norm"),
        ("matmul", "linear_gated_act"),
        ("matmul", "linear_add"),
        ("rowwise", "gather_rms_norm"),
        ("matmul", "linear"),
        ("rowwise", "draw"),
        ("rowwise", "gather_rms_norm"),
        ("argmax", "argmax"),
    ]
    assert list(result.transforms) == [
        "layers.0.attn.q+k+v.panels",
        "freq.cos",
        "freq.sin",
        "layers.0.attn.o.weight.panels",
        "layers.0.mlp.gate+up.panels",
        "layers.0.mlp.down.weight.panels",
        "embed.panels",
        "embed.int8_rows.values",
        "embed.int8_rows.bounds",
        "embed.int8_rows.columns",
    ]
    assert result.sources == set(tiny(layers=1).graph.weights())
    assert result.graph.weights()["embed"].type.shape == (40, 16), "the embedding table itself stays unpacked"


def test_layers_share_kernels(tiny) -> None:
    result = run_pipeline(tiny(layers=5).graph, None, options(2))
    bodies = {p.region.attrs["body"].structural_hash() for p in result.plan.ops}
    # windows alternate between layers: two attention kernels; everything else once
    assert len(result.plan.ops) == 5 + 5 * 8
    assert len(bodies) == 14


def test_level_0_keeps_every_op_apart(tiny) -> None:
    result = run_pipeline(tiny().graph, None, options(0))
    for op in result.plan.ops:
        body = op.region.attrs["body"]
        work = [
            n
            for n in body.nodes
            if not n.op.startswith("core.") and n.op not in ("tensor.view", "tensor.slice", "tensor.cast")
        ]
        assert len(work) <= 1
    assert not result.refusals


def test_compiling_twice_gives_the_same_text(tiny) -> None:
    first, second = (run_pipeline(tiny().graph, None, options(2)) for _ in range(2))
    assert first.graph.structural_hash() == second.graph.structural_hash()
    assert [op.args for op in first.plan.ops] == [op.args for op in second.plan.ops]


def test_pass_names_are_kebab_case_and_explained() -> None:
    for step in build_pipeline(options(3), PassContext()):
        assert step.name == step.name.lower()
        assert "_" not in step.name
        assert 10 < len(step.why) < 110
        assert "\n" not in step.why
    assert len(pass_names()) == 18
