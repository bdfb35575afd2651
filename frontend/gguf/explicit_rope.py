"""Rotary frequencies that a GGUF file states one by one, as a rope type of transformers."""

from __future__ import annotations

from typing import Any

import torch

from inferir.frontend.checkpoint.huggingface import api
from inferir.frontend.gguf.gguf_rope import EXPLICIT


def register_explicit() -> None:
    """Make `EXPLICIT` a rope type that transformers' models know."""
    table: Any = api().rope_init
    table.setdefault(EXPLICIT, _explicit_frequencies)


def _explicit_frequencies(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None
) -> tuple[torch.Tensor, float]:
    """Frequencies [dim / 2] and the factor of cosine and sine, as the configuration states them."""
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    out = torch.tensor(parameters["inv_freq"], dtype=torch.float64).to(device=device, dtype=torch.float32)
    return out, float(parameters["attention_factor"])
