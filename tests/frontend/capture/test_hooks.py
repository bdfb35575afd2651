"""Attention and mask hooks: what they capture and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import masking_utils

from inferir.frontend.capture.export import export
from inferir.frontend.capture.hooks import MaskSpec, attention, describe, resolve_reads
from inferir.frontend.capture.import_program import import_program
from inferir.ir.contract.kv_reads import Chunks, FullAttention, SlidingWindow
from inferir.ir.errors import UntraceableError

Capture = Callable[..., Any]


def test_mask_descriptions() -> None:
    causal = masking_utils.causal_mask_function
    assert describe(causal) == MaskSpec(causal=True)
    assert describe(masking_utils.sliding_window_causal_mask_function(8)) == MaskSpec(
        causal=True, reads=SlidingWindow(8)
    )
    chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(1))
    assert describe(chunked) == MaskSpec(causal=True, reads=Chunks(4))
    ids = torch.zeros(1, 4, dtype=torch.long)
    packed = masking_utils.and_masks(
        masking_utils.remap_positions_for_packed_sequence(causal, ids), masking_utils.packed_sequence_mask_function(ids)
    )
    assert describe(packed) == MaskSpec(causal=True)
    both = masking_utils.and_masks(
        masking_utils.sliding_window_causal_mask_function(8), masking_utils.sliding_window_overlay(5)
    )
    assert describe(both) == MaskSpec(causal=True, reads=SlidingWindow(5))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.causal_mask_function),
            "a union of masks",
        ),
        (
            masking_utils.and_masks(
                masking_utils.chunked_causal_mask_function(4, torch.zeros(1)), masking_utils.sliding_window_overlay(5)
            ),
            "both chunks of 4 and sliding window of 5",
        ),
        (masking_utils.sliding_window_bidirectional_mask_function(4), "a bidirectional window"),
        (masking_utils.and_masks(masking_utils.causal_mask_function, lambda b, h, q, k: k >= q - 3), "<lambda>"),
    ],
    ids=["union", "chunks", "bidirectional", "user"],
)
def test_masks_without_description_are_refused(mask: Callable[..., Any], message: str) -> None:
    with pytest.raises(UntraceableError, match=message):
        describe(mask)


def test_window_of_mask_and_argument_must_agree() -> None:
    causal, windowed = MaskSpec(causal=True), MaskSpec(causal=True, reads=SlidingWindow(8))
    assert resolve_reads(windowed, 8, True, "here") == SlidingWindow(8)
    assert resolve_reads(windowed, 0, True, "here") == SlidingWindow(8)
    assert resolve_reads(causal, 0, True, "here") == FullAttention()
    assert resolve_reads(None, 8, True, "here") == SlidingWindow(8)
    with pytest.raises(UntraceableError, match="here is called with sliding_window=8, but its mask is full attention"):
        resolve_reads(causal, 8, True, "here")
    with pytest.raises(UntraceableError, match="sliding_window=4, but its mask is sliding window of 8"):
        resolve_reads(windowed, 4, True, "here")


def test_bidirectional_attention_is_refused() -> None:
    with pytest.raises(UntraceableError, match="not causal"):
        resolve_reads(MaskSpec(), 0, True, "here")
    with pytest.raises(UntraceableError, match="bidirectional"):
        resolve_reads(None, 0, False, "here")


def call(heads: int = 4, kv_heads: int = 2, **arguments: Any) -> None:
    def rows(h: int) -> torch.Tensor:
        return torch.zeros(1, h, 3, 8)

    module = SimpleNamespace(layer_idx=5, is_causal=True)
    attention(module, rows(heads), rows(kv_heads), rows(kv_heads), None, **arguments)


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(UntraceableError, match=r"layer 5 uses attention sinks \(s_aux\)"):
        call(s_aux=torch.zeros(4))
    with pytest.raises(UntraceableError, match="layer 5 calls attention with the tensor argument 'position_bias'"):
        call(position_bias=torch.zeros(1))
    with pytest.raises(UntraceableError, match="with the argument 'sparsity'"):
        call(sparsity=3)


def test_indivisible_heads_are_refused_with_both_numbers() -> None:
    with pytest.raises(UntraceableError, match=r"num_attention_heads=5 must be a multiple of num_key_value_heads=2"):
        call(5, 2)


class OneLayer(torch.nn.Module):
    """A model that calls our attention itself; `edit` changes mask and keyword arguments."""

    def __init__(self, edit: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor | None]) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.edit = edit

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        from inferir.frontend.capture.hooks import mask

        x = self.table(input_ids)
        q = x.view(1, -1, 2, 4).transpose(1, 2)
        arguments: dict[str, Any] = {"scaling": 0.5}
        marker = mask(
            q_length=x.shape[1],
            kv_length=x.shape[1],
            mask_function=masking_utils.sliding_window_causal_mask_function(6),
            dtype=x.dtype,
        )
        out, _ = attention(self, q, q, q, self.edit(marker, arguments), **arguments)
        return SimpleNamespace(logits=out.reshape(1, -1, 8))


def traced(edit: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor | None]) -> Any:
    return import_program(export(OneLayer(edit).eval().requires_grad_(False)))


def scales(result: Any) -> list[float]:
    return [n.attrs["scale"] for n in result.graph.nodes if n.op == "attn.attention"]


def test_a_mask_may_be_sliced_cast_and_expanded() -> None:
    result = traced(lambda m, kw: m[:, :, :, : m.shape[-1]].to(torch.float32).contiguous())
    (call_,) = result.attention
    assert (call_.reads, call_.heads, call_.kv_heads, call_.head_dim) == ("sliding_window(6)", 2, 2, 4)
    assert scales(result) == [0.5]


def test_a_tensor_scale_is_folded_into_the_query() -> None:
    result = traced(lambda m, kw: kw.update(scaling=torch.tensor(0.25)) or m)
    assert scales(result) == [1.0]
    assert any(n.op == "core.scalar" and n.attrs["value"] == 0.25 for n in result.graph.nodes)


def test_a_mask_used_in_arithmetic_is_refused() -> None:
    with pytest.raises(UntraceableError, match="used outside attention"):
        traced(lambda m, kw: m * 2)


def test_a_mask_of_the_model_itself_is_refused() -> None:
    def own(m: torch.Tensor, kw: dict[str, Any]) -> torch.Tensor:
        return torch.zeros_like(m)

    with pytest.raises(UntraceableError, match=r"mask"):
        traced(own)


def test_a_partial_mask_is_refused() -> None:
    with pytest.raises(UntraceableError, match="reshaped"):
        traced(lambda m, kw: m[:, :, :, :1])
    with pytest.raises(UntraceableError, match="used outside attention"):
        traced(lambda m, kw: m[:, :, 0])
