"""Every key of a GGUF model is used, known to be irrelevant, or named in an error or a warning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from gguf_models import FAMILIES, Gguf, tiny

from inferir.frontend.checkpoint.checkpoint_files import WeightWarning
from inferir.frontend.gguf.gguf_file import decisions, end_token_ids, generation_defaults, load_config
from inferir.frontend.gguf.gguf_keys import NEUTRAL
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import FrontendError, WeightError


def config(gguf: Gguf, folder: Path) -> Any:
    return load_config(gguf.write(folder / "model.gguf"))


def refusal(gguf: Gguf, folder: Path) -> str:
    with pytest.raises(FrontendError) as error:
        config(gguf, folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_what_could_change_numbers_is_named(architecture: str, tmp_path: Path) -> None:
    gguf = tiny(architecture).set(f"{architecture}.attention.temperature_scale", "f32", 2.0)
    gguf = gguf.set(f"{architecture}.residual_scale", "f32", 0.5)
    line = refusal(gguf, tmp_path)
    for part in ("model.gguf", f"{architecture}.attention.temperature_scale=2.0", f"{architecture}.residual_scale=0.5"):
        assert part in line


@pytest.mark.parametrize("suffix", sorted(NEUTRAL))
def test_a_value_that_changes_nothing_is_accepted(suffix: str, tmp_path: Path) -> None:
    kinds = {bool: "bool", int: "u32", str: "text"}
    for value in NEUTRAL[suffix]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", WeightWarning)
            config(tiny("qwen2").set(f"qwen2.{suffix}", kinds[type(value)], value), tmp_path)
    other = {bool: ("bool", value is not True), int: ("u32", 7), str: ("text", "other")}[type(value)]
    assert f"qwen2.{suffix}" in refusal(tiny("qwen2").set(f"qwen2.{suffix}", *other), tmp_path)


def test_recommended_sampling_that_is_not_followed_is_named(tmp_path: Path) -> None:
    gguf = tiny("llama").set("general.sampling.mirostat", "i32", 2).set("general.sampling.temp", "f32", 0.7)
    with pytest.warns(WeightWarning, match=r"general\.sampling\.mirostat$"):
        config(gguf, tmp_path)
    assert generation_defaults(tmp_path / "model.gguf") == {"temperature": 0.7}


def test_both_kinds_of_epsilon_may_be_there(tmp_path: Path) -> None:
    """Converters write both for some architectures; the one of its norms counts."""
    got = config(tiny("nemotron").set("nemotron.attention.layer_norm_rms_epsilon", "f32", 0.5), tmp_path)
    assert got.norm_eps == pytest.approx(1e-5)


def test_keys_nobody_knows_are_named_in_one_warning(tmp_path: Path) -> None:
    gguf = tiny("llama").set("vendor.a", "u32", 1).set("clip.vision", "bool", True).set("general.tags", "text", "x")
    with pytest.warns(WeightWarning) as caught:
        config(gguf, tmp_path)
    (line,) = [str(w.message) for w in caught]
    assert line == "model.gguf: not known and not used: vendor.a, clip.vision"


@pytest.mark.parametrize(
    ("key", "kind", "value", "said"),
    [
        ("block_count", "text", "two", "is 'two' (text); it must be an integer from 1"),
        ("block_count", "u64", 2**40, "it must be an integer from 1 to 10000"),
        ("attention.head_count", "u32 list", [4, 2], "differs from layer to layer"),
        ("attention.head_count", "u32 list", [4, 4, 4], "a list of one for each of the 2 layers"),
        ("attention.head_count_kv", "u32", 3, "does not divide 4 heads"),
        ("attention.key_length", "u32", 32, "rope.dimension_count' is 16, but 'llama' rotates all 32"),
        ("attention.value_length", "u32", 8, "is 8, but the length of a key is 16"),
        ("attention.layer_norm_rms_epsilon", "f32", float("nan"), "a finite number of at least 0"),
        ("attention.scale", "f32", 0.5, "is 0.5, but the scale of attention is 0.25"),
        ("attention.sliding_window", "u32", 128, "a window is not supported for 'llama'"),
        ("attention.causal", "bool", False, "llama.attention.causal=False"),
        ("expert_count", "u32", 8, "llama.expert_count=8"),
        ("rope.freq_base", "f32", -1.0, "a finite number above 1"),
        ("rope.dimension_count", "u32", 8, "rotates all 16"),
        ("rope.scaling.type", "text", "dynamic", "known are none, linear, yarn, longrope"),
        ("rope.scaling.type", "text", "longrope", "the tensor 'rope_factors_long.weight' is missing"),
        ("rope.scaling.factor", "f32", float("inf"), "a finite number of at least 0"),
        ("rope.scaling.yarn_beta_fast", "f32", 16.0, "is 16, but the only value that is used is 32"),
        ("rope.scaling.yarn_log_multiplier", "f32", 0.1, "llama.rope.scaling.yarn_log_multiplier"),
    ],
)
def test_a_wrong_value_is_named(key: str, kind: str, value: Any, said: str, tmp_path: Path) -> None:
    line = refusal(tiny("llama").set(f"llama.{key}", kind, value), tmp_path)
    assert said in line
    assert line.startswith("model.gguf: ")


def test_harmless_keys_are_silent(tmp_path: Path) -> None:
    gguf = tiny("llama").set("llama.pooling_type", "u32", 3).set("llama.rope.scaling.finetuned", "bool", True)
    gguf = gguf.set("llama.attention.sliding_window", "u32", 4096).set("llama.vocab_size", "u32", 99)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeightWarning)
        assert config(gguf, tmp_path).vocab_size == 272


def test_adapters_and_other_architectures_are_refused(tmp_path: Path) -> None:
    assert "only whole models are read" in refusal(tiny("llama").set("general.type", "text", "adapter"), tmp_path)
    line = refusal(tiny("llama").set("general.architecture", "text", "mamba"), tmp_path)
    assert "architecture 'mamba' is not supported as GGUF; supported are llama, qwen2" in line


def test_every_size_of_the_configuration_is_the_files(tmp_path: Path) -> None:
    """Not the defaults of transformers, which are those of another model."""
    got = config(tiny("gemma2", attention__sliding_window_pattern=2), tmp_path)
    assert (got.head_dim, got.query_pre_attn_scalar, got.sliding_window) == (32, 32, 16)
    assert (got.attn_logit_softcapping, got.final_logit_softcapping) == (20.0, 9.0)
    assert got.layer_types == ["sliding_attention", "full_attention"]
    assert config(tiny("qwen3"), tmp_path).head_dim == 32
    assert config(tiny("starcoder2"), tmp_path).rope_parameters["rope_theta"] == 1e5
    assert config(tiny("gpt2"), tmp_path).n_positions == 512


def test_special_ids_come_from_the_file_alone(tmp_path: Path) -> None:
    """A file that names no end token has none; transformers' default is another model's."""
    gguf = tiny("llama").drop("tokenizer.ggml.eos_token_id").drop("tokenizer.ggml.bos_token_id")
    got = config(gguf, tmp_path)
    assert (got.eos_token_id, got.bos_token_id, got.pad_token_id) == (None, None, None)
    assert end_token_ids(tmp_path / "model.gguf") == ()


def test_every_end_token_counts_once(tmp_path: Path) -> None:
    gguf = tiny("llama").set("tokenizer.ggml.eot_token_id", "u32", 7).set("tokenizer.ggml.eom_token_id", "u32", 2)
    assert end_token_ids(gguf.write(tmp_path / "model.gguf")) == (2, 7)


@pytest.mark.parametrize(("kind", "value"), [("u32", 272), ("i32", -2), ("text", "2"), ("bool", True), ("f32", 2.0)])
def test_an_end_token_that_is_none_is_named(kind: str, value: Any, tmp_path: Path) -> None:
    path = tiny("llama").set("tokenizer.ggml.eot_token_id", kind, value).write(tmp_path / "model.gguf")
    with pytest.raises(FrontendError, match=r"'tokenizer\.ggml\.eot_token_id' is .*; it must be an id from 0 to 271"):
        end_token_ids(path)


@pytest.mark.parametrize(("kind", "value"), [("i32", -1), ("u32", 2**32 - 1)])
def test_minus_one_is_no_token(kind: str, value: int, tmp_path: Path) -> None:
    gguf = tiny("llama").set("tokenizer.ggml.eot_token_id", kind, value)
    gguf = gguf.set("tokenizer.ggml.padding_token_id", kind, value)
    assert config(gguf, tmp_path).pad_token_id is None
    assert end_token_ids(tmp_path / "model.gguf") == (2,)


def test_recommended_sampling(tmp_path: Path) -> None:
    gguf = tiny("llama").set("general.sampling.temp", "f32", 0.5).set("general.sampling.top_k", "i32", 20)
    path = gguf.write(tmp_path / "model.gguf")
    assert generation_defaults(path) == {"temperature": 0.5, "top_k": 20}
    assert load_source(str(path)).generation_config == {"temperature": 0.5, "top_k": 20, "eos_token_id": [2]}


def test_decisions_name_their_keys(tmp_path: Path) -> None:
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "final_logit_softcapping": 7.0}
    found = {d.subject: d for d in decisions(tiny("gemma3", **keys).write(tmp_path / "model.gguf"))}
    assert found["rope"].value == "yarn, base 1e+06, factor 4"
    assert found["rope"].source == "model.gguf: gemma3.rope.scaling.type"
    assert found["attention window"].value == "16 tokens in 6 of 7 layers"
    assert found["final logit softcapping"].value == "7"
    assert found["context length"].value == "512"
    assert found["norm epsilon"].source == "model.gguf: gemma3.attention.layer_norm_rms_epsilon"
    assert found["output matrix"].value == "token_embd.weight"


def test_a_norm_that_one_layer_lacks_is_missing(tmp_path: Path) -> None:
    """Its bias may be absent, which is zero; a weight of zero would be another model."""
    gguf = tiny("stablelm")
    names = load_source(str(gguf.without("blk.1.ffn_norm.bias").write(tmp_path / "a.gguf")), "f32").weights.names()
    assert "model.layers.1.post_attention_layernorm.bias" in names
    path = gguf.without("blk.1.ffn_norm.weight").write(tmp_path / "b.gguf")
    with pytest.raises(WeightError, match=r"'blk\.1\.ffn_norm\.weight' is missing"):
        load_source(str(path), "f32").weights.names()
