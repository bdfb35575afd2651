"""`python -m inferir.testing.capture_graphs` traces the small models of `model_graphs` and writes their IR text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from inferir.frontend.capture import hooks
from inferir.frontend.capture.export import export
from inferir.frontend.capture.import_program import import_program
from inferir.frontend.checkpoint.huggingface import api, quiet, skeleton, tied_names
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.printer import print_graph
from inferir.testing.model_graphs import FAMILIES

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ALTERNATING = {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 8},
    "mistral": {"head_dim": 8, "sliding_window": 3},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 8},
    "gemma2": {**_ALTERNATING, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0},
    "gemma3_text": _ALTERNATING,
    "phi": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.25, "hidden_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "stablelm": {"partial_rotary_factor": 0.25, "hidden_size": 64},
    "olmo2": {},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.3,
        "logits_scaling": 4.0,
    },
}


def capture(family: str, dtype: DType = DType.BF16) -> str:
    """The IR text of the family's small model, traced now. Raises `FrontendError` where transformers is missing."""
    hooks.register()
    with quiet():
        config = api().auto_config.for_model(family, **{**_COMMON, **_CONFIGS[family]})
        model = skeleton(config, torch_dtype(dtype))
    return print_graph(import_program(export(model), tied_names(model)).graph) + "\n"


def main() -> None:
    """Write the text of every family beside this module."""
    logging.disable()
    folder = Path(__file__).parent / "graphs"
    for family in FAMILIES:
        (folder / f"{family}.txt").write_text(capture(family), encoding="utf-8")
        print(folder / f"{family}.txt")


if __name__ == "__main__":
    main()
