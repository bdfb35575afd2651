"""Tiny random models of many shapes and families, as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from artifacts import VOCAB, write_tokenizer

IDS = {"vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None}
ONE_BUCKET: dict[str, Any] = {
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
    "buckets": "1-16",
    "block_size": 16,
    "jobs": 1,
}
"""Options of a compile with one bucket, which takes half the time of three. Files that use them share its kernels."""
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 256, **IDS}


def llama(**changes: Any) -> Any:
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return transformers.LlamaConfig(**{**SMALL, **heads, **changes})


def grouped(heads: int, kv_heads: int) -> Any:
    return llama(hidden_size=8 * heads, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8)


def gemma3(**changes: Any) -> Any:
    """Windows in every other layer, QK-norm, scaled embeddings, norms around both blocks, tied weights."""
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24, "query_pre_attn_scalar": 24}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    return transformers.Gemma3TextConfig(**{**SMALL, **heads, **layers, **changes})


def qwen3(**changes: Any) -> Any:
    import transformers

    return transformers.Qwen3Config(
        **{**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20, **changes}
    )


def qwen2(**changes: Any) -> Any:
    """Biases on q, k and v."""
    import transformers

    return transformers.Qwen2Config(**{**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, **changes})


def mistral(**changes: Any) -> Any:
    """A window in every layer."""
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 12}
    return transformers.MistralConfig(**{**SMALL, **heads, **changes})


def apertus(**changes: Any) -> Any:
    """The activation xIELU, which has expm1 in it, and QK-norm."""
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return transformers.ApertusConfig(**{**SMALL, **heads, **rope("default"), **changes})


def gpt_neox(**changes: Any) -> Any:
    """Rotation of a quarter of each head, layer norms, parallel residual."""
    import transformers

    return transformers.GPTNeoXConfig(**{**SMALL, "num_attention_heads": 4, "rotary_pct": 0.25, **changes})


def phi(**changes: Any) -> Any:
    import transformers

    return transformers.PhiConfig(**{**SMALL, "num_attention_heads": 4, "partial_rotary_factor": 0.5, **changes})


def stablelm(**changes: Any) -> Any:
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.25}
    return transformers.StableLmConfig(**{**SMALL, **heads, **changes})


def rope(kind: str, key: str = "rope_type", **more: Any) -> dict[str, Any]:
    """`rope_scaling` of a model made for 64 positions, in either spelling of the kind."""
    return {
        "max_position_embeddings": 256,
        "rope_scaling": {key: kind, "factor": 4.0, "original_max_position_embeddings": 64, **more},
    }


def write(config: Any, folder: Path, seed: int = 0, **weights: float) -> Path:
    """A random model with weights large enough that greedy choices are clear, biases and norms included."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.2 * torch.randn(parameter.shape))
            else:
                parameter.mul_(weights.get("scale", 4.0))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
