"""The captured graph against Hugging Face's eager code, from folders on disk."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferir.frontend.capture.eager import eager_model, model_logits
from inferir.frontend.capture.trace import TracedModel, trace
from inferir.frontend.checkpoint.checkpoint_weights import Weights
from inferir.frontend.source.model_source import load_source
from inferir.ir.graph.interpreter import interpret

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]

ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}


def graph_logits(traced: TracedModel, weights: Weights, ids: list[int]) -> torch.Tensor:
    inputs = {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "positions": torch.arange(len(ids), dtype=torch.int32),
    }
    out = interpret(traced.graph, inputs, weights)["logits"]
    assert isinstance(out, torch.Tensor)
    return out


def some_ids(count: int) -> list[int]:
    return [(i * 37 + 11) % 157 + 3 for i in range(count)]


@functools.cache
def traced(folder: Path, dtype: str) -> tuple[TracedModel, Weights, Any]:
    """Trace and eager model of a folder, once per session."""
    source = load_source(str(folder), dtype)
    result = trace(source)
    return result, result.weights(source.weights), eager_model(source)


def compare(folder: Path, lengths: tuple[int, ...], dtype: str = "f32", tolerance: float = 2e-5) -> TracedModel:
    """Check graph against eager at several lengths; returns the trace."""
    result, weights, model = traced(folder, dtype)
    for n in lengths:
        ids = some_ids(n)
        want = model_logits(model, ids)
        got = graph_logits(result, weights, ids)
        assert got.dtype == torch.float32
        assert got.shape == want.shape
        scale = want.abs().max()
        assert scale > 0.01
        assert (got - want).abs().max() <= tolerance * scale, f"{folder.name} at {n} tokens"
    return result


FAMILIES = (
    "llama",
    "gemma3_text",
    "qwen2",
    "qwen3",
    "mistral",
    "gpt_neox",
    "phi",
    "stablelm",
    "phi3",
    "olmo2",
    "granite",
    "starcoder2",
    "opt",
    "gpt2",
    "gemma",
    "gemma2",
    "cohere",
    "glm",
    "glm4",
    "apertus",
)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families_match_eager(model_type: str, save_tiny: SaveTiny) -> None:
    result = compare(save_tiny(model_type), (1, 5, 40))
    assert result.facts.model_type == model_type
    assert result.facts.num_layers == 2
    assert result.facts.vocab_size == 160


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3", "gemma2"])
def test_half_precision_matches_eager(model_type: str, save_tiny: SaveTiny) -> None:
    """Only attention may round differently: the rest of the trace holds every cast."""
    compare(save_tiny(model_type, torch.bfloat16), (1, 21), "auto", 4e-2)


def test_what_tokens_read_is_traced_per_layer(save_tiny: SaveTiny) -> None:
    def reads(folder: Path) -> list[str]:
        return [layer.reads for layer in compare(folder, (8, 9, 30)).facts.layers]

    assert reads(save_tiny("gemma3_text")) == ["sliding_window(8)", "full_attention"]
    assert reads(save_tiny("mistral")) == ["sliding_window(8)", "sliding_window(8)"]
    assert reads(save_tiny("qwen2")) == ["full_attention", "sliding_window(8)"]


def test_softcap_reaches_attention(save_tiny: SaveTiny) -> None:
    result = compare(save_tiny("gemma2"), (20,))
    assert {layer.softcap for layer in result.facts.layers} == {20.0}


@pytest.mark.parametrize(
    ("hidden", "heads", "head_dim"), [(96, 4, 32), (48, 4, 16), (100, 3, 16)], ids=["wide", "same", "indivisible"]
)
def test_explicit_head_dim(hidden: int, heads: int, head_dim: int, save_tiny: SaveTiny) -> None:
    """The config's head_dim counts, also where the hidden size is no multiple of the number of heads."""
    model_type = "qwen3" if hidden % heads else "llama"
    folder = save_tiny(
        model_type, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=1, head_dim=head_dim, **ONE_LAYER
    )
    layer = compare(folder, (6, 19)).facts.layers[0]
    assert (layer.heads, layer.kv_heads, layer.head_dim) == (heads, 1, head_dim)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (7, 7), (10, 2), (9, 3)])
def test_any_group_size(heads: int, kv_heads: int, save_tiny: SaveTiny) -> None:
    folder = save_tiny(
        "llama", hidden_size=heads * 8, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8, **ONE_LAYER
    )
    layer = compare(folder, (11,)).facts.layers[0]
    assert (layer.heads, layer.kv_heads) == (heads, kv_heads)


def test_biases_are_used(save_tiny: SaveTiny) -> None:
    result = compare(save_tiny("llama", attention_bias=True, mlp_bias=True, **ONE_LAYER), (9,))
    names = set(result.graph.weights())
    assert "model.layers.0.self_attn.o_proj.bias" in names
    assert "model.layers.0.mlp.down_proj.bias" in names


ROPE = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize(
    ("kind", "spelling"), [("linear", "type"), ("yarn", "rope_type"), ("llama3", "rope_type"), ("yarn", "type")]
)
def test_rope_scaling(kind: str, spelling: str, save_tiny: SaveTiny, edited: Edited) -> None:
    """Scaling kinds that depend on positions alone, in both spellings, within and beyond the original length."""
    scaling = {spelling: kind, **ROPE[kind]}
    folder = edited(save_tiny("llama", **ONE_LAYER), ("rope_parameters",), rope_scaling=scaling, rope_theta=1e4)
    plain = compare(save_tiny("llama", **ONE_LAYER), (10,))
    scaled = compare(folder, (10, 200))
    name = "const.model.rotary_emb.inv_freq"
    assert not torch.equal(plain.constants[name], scaled.constants[name])


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("gpt_neox", {"rotary_pct": 0.25, "hidden_size": 64}),
        ("phi", {"partial_rotary_factor": 0.5, "hidden_size": 64}),
        ("stablelm", {"partial_rotary_factor": 0.25, "hidden_size": 64}),
    ],
)
def test_partial_rotary_at_long_positions(model_type: str, options: dict[str, object], save_tiny: SaveTiny) -> None:
    folder = save_tiny(model_type, max_position_embeddings=1024, **ONE_LAYER, **options)
    compare(folder, (800,), tolerance=1e-4)


def test_bare_decoder_checkpoint(save_tiny: SaveTiny, edited: Edited) -> None:
    """Names without the inner model's prefix are found."""
    folder = edited(save_tiny("llama", tie_word_embeddings=True))
    tensors = load_file(folder / "model.safetensors")
    save_file({k.removeprefix("model."): v for k, v in tensors.items()}, folder / "model.safetensors")
    source = load_source(str(folder))
    result = trace(source)
    want = model_logits(eager_model(load_source(str(save_tiny("llama", tie_word_embeddings=True)))), some_ids(7))
    got = graph_logits(result, result.weights(source.weights), some_ids(7))
    assert torch.allclose(got, want, atol=1e-5, rtol=1e-4)
