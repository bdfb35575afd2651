"""A random Llama of one layer, written as a Hugging Face folder: the smallest model that takes every stage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

VOCABULARY = 258
"""One token per byte, then begin and end of text."""
_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 64}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 256, "eos_token_id": 257}


def write_tiny_model(folder: Path) -> None:
    """Write config, float32 weights and tokenizer into a new `folder`; the same on every machine."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "hidden_act": "silu"}
    numbers = {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps({**kind, **numbers, **_SIZES, **_HEADS, **_IDS}))
    draw = np.random.default_rng(0)
    weights = {name: _draw(draw, shape) for name, shape in _shapes().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)


def _draw(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Large enough that logits differ clearly."""
    return (0.3 * draw.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)


def _shapes() -> dict[str, tuple[int, ...]]:
    width, inner = _SIZES["hidden_size"], _SIZES["intermediate_size"]
    keys = _HEADS["num_key_value_heads"] * _HEADS["head_dim"]
    layer = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    outer = {"model.embed_tokens": (VOCABULARY, width), "model.norm": (width,), "lm_head": (VOCABULARY, width)}
    return {f"{name}.weight": shape for name, shape in outer.items()} | {
        f"model.layers.0.{name}.weight": shape for name, shape in layer.items()
    }


def _write_tokenizer(folder: Path) -> None:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
