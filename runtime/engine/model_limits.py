"""What the engine knows of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelLimits:
    """Ids 0 … vocab_size - 1, the ids that end a text, and the longest sequence."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int
