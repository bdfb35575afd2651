"""What the whole pipeline makes of a small decoder, at every level."""

from dataclasses import replace

import pytest
from small_limits import limits

from inferir.passes.context import PassContext, PassOptions
from inferir.passes.manager import run_pipeline
from inferir.passes.pipeline import build_pipeline, pass_names
from inferir.testing import check_pass
from inferir.testing.stage import OPTIONS


def options(level: int, **changes) -> PassOptions:
    return PassOptions(
        opt_level=level,
        limits=limits(max_model_len=16, max_tokens=8, max_seqs=2, block_size=4),
        **{"features": frozenset({"avx512vnni"}), **changes},
    )


@pytest.mark.parametrize("level", [0, 1, 3])
def test_passes_keep_to_their_rules_at_other_levels(level: int) -> None:
    """At level 2 each is checked in `tests/testing`."""
    chosen = {0: ("pack-weights", "fuse-regions"), 1: ("fuse-regions",), 3: ("gather-logit-rows", "insert-argmax")}
    for name in chosen[level]:
        check_pass(name, options=replace(OPTIONS, opt_level=level), families=("llama", "gemma2"), examples=6)


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
