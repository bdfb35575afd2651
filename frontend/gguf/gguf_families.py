"""The architectures whose GGUF files are read: which keys decide their configuration, and which tensors they have.

A file of any other architecture is refused by name. Every entry of a configuration that a key decides is stated here;
nothing is left to a default of the library, whose defaults are those of one particular model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferir.frontend.gguf.gguf_family import Context, Family
from inferir.frontend.gguf.gguf_rope import FREQS, LONG, SHORT, unscaled
from inferir.frontend.gguf.gguf_tensors import Rule, linear

RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_L = "model.layers.{i}"


def _norm(name: str, target: str, bias: bool = False, change: str = "", shape: str = "h") -> tuple[Rule, ...]:
    weight = Rule(f"{name}.weight", f"{target}.weight", shape, change)
    return (weight, Rule(f"{name}.bias", f"{target}.bias", shape)) if bias else (weight,)


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


def _second_norm(bias: bool = False, change: str = "") -> tuple[Rule, ...]:
    return _norm("blk.{i}.ffn_norm", f"{_L}.post_attention_layernorm", bias, change)


_HEAD_NORMS = (
    *_norm("blk.{i}.attn_q_norm", f"{_L}.self_attn.q_norm", shape="d"),
    *_norm("blk.{i}.attn_k_norm", f"{_L}.self_attn.k_norm", shape="d"),
)
_GEMMA_NORMS = (
    *_norm("blk.{i}.post_attention_norm", f"{_L}.post_attention_layernorm", change="minus one"),
    *_norm("blk.{i}.ffn_norm", f"{_L}.pre_feedforward_layernorm", change="minus one"),
    *_norm("blk.{i}.post_ffw_norm", f"{_L}.post_feedforward_layernorm", change="minus one"),
)


def _common(at: Context) -> dict[str, Any]:
    sizes = at.sizes
    out = {
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.feed_forward,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": sizes.context,
    }
    return out if at.rope is None else {**out, "rope_parameters": dict(at.rope.parameters)}


def _llama(at: Context) -> dict[str, Any]:
    flags = {"attention_bias": "attention" in at.groups, "mlp_bias": "mlp" in at.groups}
    _no_window(at)
    at.keys.same("attention.scale", 1.0 / math.sqrt(at.sizes.head_dim), "the scale of attention")
    return {**_common(at), "rms_norm_eps": at.sizes.epsilon, "head_dim": at.sizes.head_dim, **flags}


def _qwen2(at: Context) -> dict[str, Any]:
    _no_window(at)
    return {**_common(at), "rms_norm_eps": at.sizes.epsilon, "use_sliding_window": False, "sliding_window": None}


def _qwen3(at: Context) -> dict[str, Any]:
    return {**_qwen2(at), "head_dim": at.sizes.head_dim, "attention_bias": False}


def _no_window(at: Context) -> None:
    """Accept a window that is never reached."""
    window = at.keys.integer("attention.sliding_window", 0, low=0)
    if 0 < window < at.sizes.context:
        key = at.keys.full("attention.sliding_window")
        raise at.keys.fail(key, f"is {window}: a window is not supported for {at.keys.architecture!r}")


def _gemma(at: Context) -> dict[str, Any]:
    return {
        **_common(at),
        "rms_norm_eps": at.sizes.epsilon,
        "head_dim": at.sizes.head_dim,
        "attention_bias": False,
        "hidden_act": "gelu_pytorch_tanh",
    }


def _gemma2(at: Context) -> dict[str, Any]:
    window = at.keys.integer("attention.sliding_window", 4096)
    at.keys.same("rope.freq_base_swa", at.keys.number("rope.freq_base", 10000.0), "the base of all layers")
    return {
        **_gemma_shared(at, scaled_by_hidden=46),
        "sliding_window": window,
        "layer_types": _layer_types(at, 2),
        "attn_logit_softcapping": at.keys.number("attn_logit_softcapping", 50.0, above=True),
        "final_logit_softcapping": at.keys.number("final_logit_softcapping", 30.0, above=True),
    }


def _gemma3(at: Context) -> dict[str, Any]:
    assert at.rope is not None
    window = at.keys.integer("attention.sliding_window", 0, low=0)
    base = at.keys.number("rope.freq_base_swa", 10000.0, low=1.0, above=True)
    types = _layer_types(at, 6) if window else ["full_attention"] * at.sizes.layers
    return {
        **_gemma_shared(at, scaled_by_hidden=62),
        "sliding_window": window or at.sizes.context,
        "layer_types": types,
        "final_logit_softcapping": at.keys.number("final_logit_softcapping", 0.0) or None,
        "attn_logit_softcapping": None,
        "rope_parameters": {
            "full_attention": dict(at.rope.parameters),
            "sliding_attention": dict(unscaled(at.rope, base, at.sizes.turned)),
        },
    }


def _gemma_shared(at: Context, scaled_by_hidden: int) -> dict[str, Any]:
    """scaled_by_hidden: number of layers of the one size that scales attention by hidden / heads, not by head."""
    out = _gemma(at)
    del out["hidden_act"]
    by_hidden = at.sizes.layers == scaled_by_hidden
    scalar = at.sizes.hidden // at.sizes.heads if by_hidden else at.sizes.head_dim
    return {**out, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}


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
    return {
        **_common(at),
        "rms_norm_eps": at.sizes.epsilon,
        "original_max_position_embeddings": at.rope.original,
        "sliding_window": window or None,
        "hidden_act": "silu",
    }


def _starcoder2(at: Context) -> dict[str, Any]:
    _no_window(at)
    return {**_common(at), "norm_epsilon": at.sizes.epsilon, "use_bias": True, "sliding_window": None}


def _gpt2(at: Context) -> dict[str, Any]:
    return {
        "n_embd": at.sizes.hidden,
        "n_layer": at.sizes.layers,
        "n_head": at.sizes.heads,
        "n_inner": at.sizes.feed_forward,
        "n_positions": at.sizes.context,
        "layer_norm_epsilon": at.sizes.epsilon,
        "activation_function": "gelu_new",
    }


def _stablelm(at: Context) -> dict[str, Any]:
    parallel = "second norm" not in at.groups
    stated = at.keys.flag("use_parallel_residual", parallel)
    if stated != parallel:
        tensors = "absent" if parallel else "there"
        key = at.keys.full("use_parallel_residual")
        raise at.keys.fail(key, f"is {str(stated).lower()}, but the tensors 'blk.N.ffn_norm' are {tensors}")
    return {
        **_common(at),
        "layer_norm_eps": at.sizes.epsilon,
        "use_qkv_bias": "attention" in at.groups,
        "use_parallel_residual": parallel,
        "qk_layernorm": False,
    }


def _nemotron(at: Context) -> dict[str, Any]:
    return {
        **_common(at),
        "norm_eps": at.sizes.epsilon,
        "head_dim": at.sizes.head_dim,
        "attention_bias": "attention" in at.groups,
        "mlp_bias": "mlp" in at.groups,
        "hidden_act": "relu2",
    }


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


def _optional(rules: tuple[Rule, ...], group: str) -> tuple[Rule, ...]:
    return tuple(Rule(r.name, r.target, r.shape, r.change, group) for r in rules)


def _two_matrices(up: str, down: str, bias: str) -> tuple[Rule, ...]:
    return (
        *linear("blk.{i}.ffn_up", f"{_L}.mlp.{up}", "f h", bias),
        *linear("blk.{i}.ffn_down", f"{_L}.mlp.{down}", "h f", bias),
    )


FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "llama",
        (*_model(), *_second_norm(), *_attention("attention", "attention", "interleaved"), *_gated("mlp")),
        RMS,
        _llama,
        factors=(FREQS, LONG, SHORT),
        free_head=True,
    ),
    "qwen2": Family("qwen2", (*_model(), *_second_norm(), *_attention("always"), *_gated()), RMS, _qwen2),
    "qwen3": Family(
        "qwen3", (*_model(), *_second_norm(), *_attention(), *_HEAD_NORMS, *_gated()), RMS, _qwen3, free_head=True
    ),
    "gemma": Family(
        "gemma",
        (*_model(change="minus one"), *_second_norm(change="minus one"), *_attention(), *_gated()),
        RMS,
        _gemma,
        free_head=True,
        head="never",
    ),
    "gemma2": Family(
        "gemma2",
        (*_model(change="minus one"), *_GEMMA_NORMS, *_attention(), *_gated()),
        RMS,
        _gemma2,
        free_head=True,
        head="never",
    ),
    "gemma3": Family(
        "gemma3_text",
        (
            *_model(change="minus one"),
            *_GEMMA_NORMS,
            *_attention(),
            *(Rule(r.name, r.target, r.shape, "minus one") for r in _HEAD_NORMS),
            *_gated(),
        ),
        RMS,
        _gemma3,
        free_head=True,
    ),
    "phi3": Family(
        "phi3",
        (
            *_model(),
            *_second_norm(),
            *linear("blk.{i}.attn_qkv", f"{_L}.self_attn.qkv_proj", "p h"),
            *linear("blk.{i}.attn_output", f"{_L}.self_attn.o_proj", "h q"),
            *linear("blk.{i}.ffn_up", f"{_L}.mlp.gate_up_proj", "g h"),
            *linear("blk.{i}.ffn_down", f"{_L}.mlp.down_proj", "h f"),
        ),
        RMS,
        _phi3,
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
        _starcoder2,
    ),
    "gpt2": Family("gpt2", _gpt2_rules(), LAYER, _gpt2, turned="none"),
    "stablelm": Family(
        "stablelm",
        (
            *_model(bias=True),
            *_optional(_second_norm(bias=True), "second norm"),
            *_attention("attention"),
            *_gated(),
        ),
        LAYER,
        _stablelm,
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
        _nemotron,
        turned="part",
        head="required",
    ),
}
