"""What is known about a model apart from its graph and weights. Plain data, stored as JSON; imports neither torch nor
transformers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from inferir.ir.graph.dtypes import DType

RULES_FILE = "rules.json"
"""The file of a stored trace that says which operators were imported by rules of other distributions, and by whose."""


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One attention layer as traced. reads: what a token reads, as graphs have it; softcap 0 = none."""

    module: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    reads: str = "full_attention"
    softcap: float = 0.0


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a traced model; every id in `eos_token_ids` ends a generation.

    max_position_embeddings: the longest sequence the model was made for, rotary scaling included (0 = not stated).
    position_limit: rows of its position tables, beyond which it cannot run (0 = it has none).
    length_dependent: the graph has the input `lengths`, so keys and values of a prefix depend on the prompt's length.
    parameters: number of weight elements, tied ones counted once.
    """

    name: str
    architectures: tuple[str, ...]
    model_type: str
    dtype: DType
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerFacts, ...]
    max_position_embeddings: int
    position_limit: int
    length_dependent: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    parameters: int
    tie_word_embeddings: bool

    @property
    def architecture(self) -> str:
        """The first architecture, or the model type."""
        return self.architectures[0] if self.architectures else self.model_type

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def token_ids(*sources: Any) -> tuple[int, ...]:
    """All ids in `sources` (ints, lists of ints, None), in order, each once."""
    out: list[int] = []
    for source in sources:
        items: Iterable[Any] = source if isinstance(source, (list, tuple)) else (source,)
        for item in items:
            if isinstance(item, int) and not isinstance(item, bool) and item >= 0 and item not in out:
                out.append(item)
    return tuple(out)


def first_id(*sources: Any) -> int | None:
    """The first id in `sources`, None if there is none."""
    return next(iter(token_ids(*sources)), None)
