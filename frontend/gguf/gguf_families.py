"""The architectures whose GGUF files are read: which keys decide their configuration, and which tensors they have.

A file of any other architecture is refused by name. Every entry of a configuration that a key decides is stated here;
nothing is left to a default of the library, whose defaults are those of one particular model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferir.frontend.gguf.gguf_keys import Keys
from inferir.frontend.gguf.gguf_rope import FREQS, LONG, SHORT, Rope, unscaled
from inferir.frontend.gguf.gguf_tensors import Rule, Sizes, linear

RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_L = "model.layers.{i}"


@dataclass(frozen=True)
class Context:
    """What an architecture's own part of the configuration is made from."""

    keys: Keys
    sizes: Sizes
    rope: Rope | None
    groups: frozenset[str]


@dataclass(frozen=True)
class Family:
    """One architecture.

    model_type: transformers' name. rules: its tensors. epsilon: key of the norms' epsilon. entries: of its
    configuration, by the field of `Sizes` that decides each; fixed: those that are always the same; flags: those that
    say whether the model has any tensor of a group; settings: the rest of them. turned: "all" elements of a head are
    rotated, "part" of them may be, or "none". factors: factor tensors it may have. free_head: whether a head may have
    another size than hidden / heads. head: an output matrix is "optional", "required" or "never" there.
    """

    model_type: str
    rules: tuple[Rule, ...]
    epsilon: str
    entries: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    settings: Callable[[Context], Mapping[str, Any]] = lambda _: {}
    turned: str = "all"
    factors: tuple[str, ...] = ()
    free_head: bool = False
    head: str = "optional"

    def config(self, at: Context) -> dict[str, Any]:
        """Entries of a model's configuration."""
        return {
            **{entry: getattr(at.sizes, size) for entry, size in self.entries.items()},
            **({} if at.rope is None else {"rope_parameters": dict(at.rope.parameters)}),
            **{entry: group in at.groups for entry, group in self.flags.items()},
            **self.fixed,
            **self.settings(at),
        }


def _norm(
    name: str, target: str, bias: bool = False, change: str = "", shape: str = "h", group: str = ""
) -> tuple[Rule, ...]:
    weight = Rule(f"{name}.weight", f"{target}.weight", shape, change, group)
    return (weight, Rule(f"{name}.bias", f"{target}.bias", shape, "", group)) if bias else (weight,)


def _attention(bias: str = "", out_bias: str = "", change: str = "") -> tuple[Rule, ...]:
    return (
        *linear("blk.{i}.attn_q", f"{_L}.self_attn.q_proj", "q h", bias, change),
        *linear("blk.{i}.attn_k", f"{_L}.self_attn.k_proj", "k h", bias, change),
        *linear("blk.{i}.attn_v", f"{_L}.self_attn.v_proj", "k h", bias),
        *linear("blk.{i}.attn_output", f"{_L}.self_attn.o_proj", "h q", out_bias),
    )


def _gated(bias: str = "") -> tuple[Rule, ...]:
    return (
        *linear("blk.{i}.ffn_gate", f"{_L}.mlp.gate_proj", "f h", bias),
        *linear("blk.{i}.ffn_up", f"{_L}.mlp.up_proj", "f h", bias),
        *linear("blk.{i}.ffn_down", f"{_L}.mlp.down_proj", "h f", bias),
    )


def _model(bias: bool = False, change: str = "") -> tuple[Rule, ...]:
    return (
        Rule("token_embd.weight", "model.embed_tokens.weight", "v h"),
        *_norm("output_norm", "model.norm", bias, change),
        *_norm("blk.{i}.attn_norm", f"{_L}.input_layernorm", bias, change),
    )


def _second_norm(bias: bool = False, change: str = "", group: str = "") -> tuple[Rule, ...]:
    return _norm("blk.{i}.ffn_norm", f"{_L}.post_attention_layernorm", bias, change, group=group)


def _head_norms(change: str = "") -> tuple[Rule, ...]:
    return (
        *_norm("blk.{i}.attn_q_norm", f"{_L}.self_attn.q_norm", change=change, shape="d"),
        *_norm("blk.{i}.attn_k_norm", f"{_L}.self_attn.k_norm", change=change, shape="d"),
    )


_GEMMA_NORMS = (
    *_norm("blk.{i}.post_attention_norm", f"{_L}.post_attention_layernorm", change="minus one"),
    *_norm("blk.{i}.ffn_norm", f"{_L}.pre_feedforward_layernorm", change="minus one"),
    *_norm("blk.{i}.post_ffw_norm", f"{_L}.post_feedforward_layernorm", change="minus one"),
)


def _no_window(at: Context) -> dict[str, Any]:
    """Accept a window that is never reached."""
    window = at.keys.integer("attention.sliding_window", 0, low=0)
    if 0 < window < at.sizes.context:
        key = at.keys.full("attention.sliding_window")
        raise at.keys.fail(key, f"is {window}: a window is not supported for {at.keys.architecture!r}")
    return {}


def _llama(at: Context) -> dict[str, Any]:
    at.keys.same("attention.scale", 1.0 / math.sqrt(at.sizes.head_dim), "the scale of attention")
    return _no_window(at)


def _gemma2(at: Context) -> dict[str, Any]:
    window = at.keys.integer("attention.sliding_window", 4096)
    at.keys.same("rope.freq_base_swa", at.keys.number("rope.freq_base", 10000.0), "the base of all layers")
    return {
        "query_pre_attn_scalar": _query_scalar(at, scaled_by_hidden=46),
        "sliding_window": window,
        "layer_types": _layer_types(at, 2),
        "attn_logit_softcapping": at.keys.number("attn_logit_softcapping", 50.0, above=True),
        "final_logit_softcapping": at.keys.number("final_logit_softcapping", 30.0, above=True),
    }


def _gemma3(at: Context) -> dict[str, Any]:
    assert at.rope is not None
    window = at.keys.integer("attention.sliding_window", 0, low=0)
    base = at.keys.number("rope.freq_base_swa", 10000.0, low=1.0, above=True)
    return {
        "query_pre_attn_scalar": _query_scalar(at, scaled_by_hidden=62),
        "sliding_window": window or at.sizes.context,
        "layer_types": _layer_types(at, 6) if window else ["full_attention"] * at.sizes.layers,
        "final_logit_softcapping": at.keys.number("final_logit_softcapping", 0.0) or None,
        "rope_parameters": {
            "full_attention": dict(at.rope.parameters),
            "sliding_attention": dict(unscaled(at.rope, base, at.sizes.turned)),
        },
    }


def _query_scalar(at: Context, scaled_by_hidden: int) -> int:
    """scaled_by_hidden: number of layers of the one size that scales attention by hidden / heads, not by head."""
    by_hidden = at.sizes.layers == scaled_by_hidden
    return at.sizes.hidden // at.sizes.heads if by_hidden else at.sizes.head_dim


def _layer_types(at: Context, default: int) -> list[str]:
    """ "sliding_attention" or "full_attention" of every layer: every n-th is full, or a list of what slides."""
    layers, key = at.sizes.layers, "attention.sliding_window_pattern"
    stated = at.keys.model.values.get(at.keys.full(key))
    if isinstance(stated, list):
        at.keys.used.add(at.keys.full(key))
        if len(stated) != layers or not all(isinstance(x, (bool, int)) and x in (0, 1) for x in stated):
            raise at.keys.fail(at.keys.full(key), f"must be a number, or true or false for each of {layers} layers")
        slides = [bool(x) for x in stated]
    else:
        period = at.keys.integer(key, default, low=0)
        slides = [period == 0 or i % period < period - 1 for i in range(layers)]
    return ["sliding_attention" if s else "full_attention" for s in slides]


def _phi3(at: Context) -> dict[str, Any]:
    assert at.rope is not None
    window = at.keys.integer("attention.sliding_window", 0, low=0)
    return {"original_max_position_embeddings": at.rope.scaling.original, "sliding_window": window or None}


def _stablelm(at: Context) -> dict[str, Any]:
    parallel = "second norm" not in at.groups
    stated = at.keys.flag("use_parallel_residual", parallel)
    if stated != parallel:
        tensors = "absent" if parallel else "there"
        key = at.keys.full("use_parallel_residual")
        raise at.keys.fail(key, f"is {str(stated).lower()}, but the tensors 'blk.N.ffn_norm' are {tensors}")
    return {"use_parallel_residual": parallel}


def _gpt2_rules() -> tuple[Rule, ...]:
    layer = "transformer.h.{i}"
    return (
        Rule("token_embd.weight", "transformer.wte.weight", "v h"),
        Rule("position_embd.weight", "transformer.wpe.weight", "c h"),
        *_norm("output_norm", "transformer.ln_f", bias=True),
        *_norm("blk.{i}.attn_norm", f"{layer}.ln_1", bias=True),
        *_norm("blk.{i}.ffn_norm", f"{layer}.ln_2", bias=True),
        *linear("blk.{i}.attn_qkv", f"{layer}.attn.c_attn", "p h", "!", "transpose"),
        *linear("blk.{i}.attn_output", f"{layer}.attn.c_proj", "h h", "!", "transpose"),
        *linear("blk.{i}.ffn_up", f"{layer}.mlp.c_fc", "f h", "!", "transpose"),
        *linear("blk.{i}.ffn_down", f"{layer}.mlp.c_proj", "h f", "!", "transpose"),
    )


def _two_matrices(up: str, down: str, bias: str = "", up_shape: str = "f h") -> tuple[Rule, ...]:
    return (
        *linear("blk.{i}.ffn_up", f"{_L}.mlp.{up}", up_shape, bias),
        *linear("blk.{i}.ffn_down", f"{_L}.mlp.{down}", "h f", bias),
    )


def _entries(epsilon: str, head_dim: bool = False) -> dict[str, str]:
    """The entries of most model types that a size decides. epsilon: what the type calls that of its norms."""
    return {
        "hidden_size": "hidden",
        "num_hidden_layers": "layers",
        "intermediate_size": "feed_forward",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "max_position_embeddings": "context",
        epsilon: "epsilon",
        **({"head_dim": "head_dim"} if head_dim else {}),
    }


_GPT2_ENTRIES = {
    "n_embd": "hidden",
    "n_layer": "layers",
    "n_head": "heads",
    "n_inner": "feed_forward",
    "n_positions": "context",
    "layer_norm_epsilon": "epsilon",
}
_GEMMA_MODEL = _model(change="minus one")
_TANH = "gelu_pytorch_tanh"

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "llama",
        (*_model(), *_second_norm(), *_attention("attention", "attention", "interleaved"), *_gated("mlp")),
        RMS,
        _entries("rms_norm_eps", head_dim=True),
        flags={"attention_bias": "attention", "mlp_bias": "mlp"},
        settings=_llama,
        factors=(FREQS, LONG, SHORT),
        free_head=True,
    ),
    "qwen2": Family(
        "qwen2",
        (*_model(), *_second_norm(), *_attention("always"), *_gated()),
        RMS,
        _entries("rms_norm_eps"),
        {"use_sliding_window": False, "sliding_window": None},
        settings=_no_window,
    ),
    "qwen3": Family(
        "qwen3",
        (*_model(), *_second_norm(), *_attention(), *_head_norms(), *_gated()),
        RMS,
        _entries("rms_norm_eps", head_dim=True),
        {"use_sliding_window": False, "sliding_window": None, "attention_bias": False},
        settings=_no_window,
        free_head=True,
    ),
    "gemma": Family(
        "gemma",
        (*_GEMMA_MODEL, *_second_norm(change="minus one"), *_attention(), *_gated()),
        RMS,
        _entries("rms_norm_eps", head_dim=True),
        {"attention_bias": False, "hidden_act": _TANH},
        free_head=True,
        head="never",
    ),
    "gemma2": Family(
        "gemma2",
        (*_GEMMA_MODEL, *_GEMMA_NORMS, *_attention(), *_gated()),
        RMS,
        _entries("rms_norm_eps", head_dim=True),
        {"attention_bias": False, "hidden_activation": _TANH},
        settings=_gemma2,
        free_head=True,
        head="never",
    ),
    "gemma3": Family(
        "gemma3_text",
        (*_GEMMA_MODEL, *_GEMMA_NORMS, *_attention(), *_head_norms("minus one"), *_gated()),
        RMS,
        _entries("rms_norm_eps", head_dim=True),
        {"attention_bias": False, "hidden_activation": _TANH, "attn_logit_softcapping": None},
        settings=_gemma3,
        free_head=True,
    ),
    "phi3": Family(
        "phi3",
        (
            *_model(),
            *_second_norm(),
            *linear("blk.{i}.attn_qkv", f"{_L}.self_attn.qkv_proj", "p h"),
            *linear("blk.{i}.attn_output", f"{_L}.self_attn.o_proj", "h q"),
            *_two_matrices("gate_up_proj", "down_proj", up_shape="g h"),
        ),
        RMS,
        _entries("rms_norm_eps"),
        {"hidden_act": "silu"},
        settings=_phi3,
        turned="part",
        factors=(LONG, SHORT),
    ),
    "starcoder2": Family(
        "starcoder2",
        (
            *_model(bias=True),
            *_second_norm(bias=True),
            *_attention("always", "!"),
            *_two_matrices("c_fc", "c_proj", "!"),
        ),
        LAYER,
        _entries("norm_epsilon"),
        {"use_bias": True, "sliding_window": None},
        settings=_no_window,
    ),
    "gpt2": Family("gpt2", _gpt2_rules(), LAYER, _GPT2_ENTRIES, {"activation_function": "gelu_new"}, turned="none"),
    "stablelm": Family(
        "stablelm",
        (*_model(bias=True), *_second_norm(bias=True, group="second norm"), *_attention("attention"), *_gated()),
        LAYER,
        _entries("layer_norm_eps"),
        {"qk_layernorm": False},
        flags={"use_qkv_bias": "attention"},
        settings=_stablelm,
        turned="part",
        head="required",
    ),
    "nemotron": Family(
        "nemotron",
        (
            *_model(bias=True, change="minus one"),
            *_second_norm(bias=True, change="minus one"),
            *_attention("attention", "attention"),
            *_two_matrices("up_proj", "down_proj", "mlp"),
        ),
        LAYER,
        _entries("norm_eps", head_dim=True),
        {"hidden_act": "relu2"},
        flags={"attention_bias": "attention", "mlp_bias": "mlp"},
        turned="part",
        head="required",
    ),
}
