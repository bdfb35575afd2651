"""Captured graphs of small models of many families, as IR text beside this module.

They were traced once (`python -m inferir.testing.capture_graphs` makes them anew, and a test compares them with what a
trace gives today), so that checks need neither transformers nor a second per model. Every model has two layers and
random weights; what matters is its structure.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.parser import parse_graph

FAMILIES: dict[str, str] = {
    "llama": "RMS norm, rotary embedding, grouped heads, gated MLP",
    "mistral": "a sliding window in every layer",
    "qwen2": "biases on q, k and v, tied weights",
    "qwen3": "norms of q and k",
    "gemma2": "softcaps, alternating windows, norms around both blocks, scaled embeddings",
    "gemma3_text": "alternating windows with two rotary bases, norms of q and k with an offset",
    "phi": "rotation of half of each head, parallel residual, layer norms, biases",
    "gpt_neox": "one merged product for q, k and v, parallel residual, rotation of a quarter",
    "gpt2": "learned positions, layer norms, transposed weights",
    "stablelm": "layer norms with a gated MLP, rotation of a quarter",
    "olmo2": "norms behind the blocks, and of q and k over all heads",
    "granite": "multipliers on embeddings, residuals, attention and logits",
}
"""What each brings that a pass may meet."""


def model_graph(family: str, dtype: DType = DType.BF16) -> Graph:
    """The captured graph of a small model ((ids [T], positions [T]) -> logits [T, V]), in half or single precision.

    Raises `InferirError` for an unknown family.
    """
    return parse_graph(graph_text(family, dtype))


@cache
def graph_text(family: str, dtype: DType = DType.BF16) -> str:
    """The IR text of `model_graph`."""
    if family not in FAMILIES:
        raise InferirError(f"there is no graph of {family!r}; families are {', '.join(FAMILIES)}")
    text = (files("inferir.testing") / "graphs" / f"{family}.txt").read_text(encoding="utf-8")
    return text if dtype is DType.BF16 else text.replace("bf16", dtype.value)
