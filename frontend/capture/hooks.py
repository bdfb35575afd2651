"""Attention and masks captured as single ops while a Hugging Face model is traced.

transformers lets a model look up its attention and mask functions by name. Ours emit two marker ops that exist only
in a trace:

- `inferir::attention` stands for softmax(scale · q kᵀ + mask) v, whatever implementation serves it later;
- `inferir::mask` is a tensor of additive float type [1, 1, q, kv] that carries a description of the mask (whether
  it is causal, what a token reads), so that code which slices or casts a mask keeps working and the description reaches
  the attention op that consumes it.

Whatever the description cannot express is refused, because a mask that is dropped is silently wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from inferir.frontend.checkpoint.huggingface import IMPLEMENTATION, api
from inferir.ir.contract.kv_reads import FULL_ATTENTION, Chunks, Reads, SlidingWindow
from inferir.ir.errors import UntraceableError

# Arguments of an attention call that say nothing about its result here: dropout is off in eval mode, positions are
# in q and k already, and the others steer caches or outputs.
IGNORED_ARGUMENTS = frozenset(
    {
        "dropout",
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
        "deterministic",
        "num_items_in_batch",
    }
)


@dataclass(frozen=True)
class MaskSpec:
    """What a mask allows within one sequence: whether it is `causal`, and which positions before its own a token
    reads.
    """

    causal: bool = False
    reads: Reads = FULL_ATTENTION

    def meet(self, other: MaskSpec) -> MaskSpec:
        """The mask that allows what both allow. Raises `UntraceableError` where no rule says what that is."""
        rules = {r for r in (self.reads, other.reads) if r != FULL_ATTENTION}
        if len(rules) > 1 and not all(isinstance(r, SlidingWindow) for r in rules):
            raise UntraceableError(f"the attention mask is both {' and '.join(sorted(r.text for r in rules))}")
        return MaskSpec(self.causal or other.causal, min(rules, key=lambda r: r.reach or 0, default=FULL_ATTENTION))


# --- marker ops -----------------------------------------------------------------------------------------------------


def _attention_type(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    window: int,
    softcap: float,
    causal: bool,
) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def _mask_type(like: torch.Tensor, queries: int, keys: int, reads: str, causal: bool) -> torch.Tensor:
    return like.new_empty((1, 1, queries, keys))


_TYPES: dict[str, Callable[..., torch.Tensor]] = {"attention": _attention_type, "mask": _mask_type}
for _name, _type in _TYPES.items():
    torch.library.custom_op(f"inferir::{_name}", _type, mutates_args=()).register_fake(_type)


# --- attention ------------------------------------------------------------------------------------------------------


def _where(module: Any) -> str:
    layer = getattr(module, "layer_idx", None)
    return type(module).__name__ + (f" of layer {layer}" if layer is not None else "")


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | torch.Tensor | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: q [1, H, T, D], k [1, Hk, T, D], v [1, Hk, T, Dv] -> ([1, T,
    H, Dv], None).

    Raises `UntraceableError` for arguments whose meaning is not captured (sinks, position biases, sparse indices,
    …), and for query heads that are not a multiple of the key-value heads.
    """
    if arguments.get("s_aux") is not None:
        raise UntraceableError(f"{_where(module)} uses attention sinks (s_aux), which are not supported yet")
    for name, argument in arguments.items():
        if argument is None or argument is False or name in IGNORED_ARGUMENTS:
            continue
        kind = "tensor argument" if isinstance(argument, torch.Tensor) else "argument"
        raise UntraceableError(f"{_where(module)} calls attention with the {kind} {name!r}, whose meaning is not known")
    heads, kv_heads = int(query.shape[1]), int(key.shape[1])
    if heads % kv_heads:
        raise UntraceableError(
            f"{_where(module)} has {heads} query heads and {kv_heads} key-value heads; "
            f"num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}"
        )
    if scaling is None:
        scaling = float(query.shape[-1]) ** -0.5
    elif isinstance(scaling, torch.Tensor):
        query, scaling = query * scaling, 1.0
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    out = torch.ops.inferir.attention(
        query,
        key,
        value,
        attention_mask,
        float(scaling),
        int(sliding_window or 0),
        float(softcap or 0.0),
        causal,
    )
    return out, None


def resolve_reads(spec: MaskSpec | None, window: int, causal: bool, where: str) -> Reads:
    """What tokens read in an attention call, from its mask and its `sliding_window` argument (0: none).

    spec: the mask's description, None where the call had no mask. Raises `UntraceableError` where the two disagree
    or the attention is not causal.
    """
    if spec is None:
        if not causal:
            raise UntraceableError(f"{where} is bidirectional; only causal attention is supported")
        return SlidingWindow(window) if window else FULL_ATTENTION
    if not spec.causal:
        raise UntraceableError(f"{where} has a mask that is not causal; only causal attention is supported")
    if window and SlidingWindow(window) != spec.reads:
        raise UntraceableError(f"{where} is called with sliding_window={window}, but its mask is {spec.reads.text}")
    return spec.reads


# --- masks ----------------------------------------------------------------------------------------------------------


def _cells(function: Any) -> dict[str, Any]:
    closure = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if closure else ()
    return {name: cell.cell_contents for name, cell in zip(names, closure, strict=True)}


def describe(function: Callable[..., Any]) -> MaskSpec:
    """The description of a transformers mask function, read from the closures it is composed of.

    Packed-sequence parts drop out: sequences are kept apart by construction. Raises `UntraceableError` naming a
    part that is no rule of what a token reads.
    """
    name = str(getattr(function, "__qualname__", type(function).__name__))
    head = name.split(".")[0]
    if getattr(function, "__module__", "") == "transformers.masking_utils":
        cells = _cells(function)
        if head == "causal_mask_function":
            return MaskSpec(causal=True)
        if head in ("bidirectional_mask_function", "packed_sequence_mask_function"):
            return MaskSpec()
        if head == "sliding_window_overlay":
            return MaskSpec(reads=SlidingWindow(int(cells["sliding_window"])))
        if head == "chunked_overlay":  # its left padding is none, since masks of two dimensions are refused
            return MaskSpec(reads=Chunks(int(cells["chunk_size"])))
        if head == "remap_positions_for_packed_sequence":
            return describe(cells["mask_function"])
        if head == "and_masks":
            return functools.reduce(MaskSpec.meet, (describe(f) for f in cells["mask_functions"]))
    known = {
        "or_masks": "a union of masks",
        "blockwise_overlay": "blocks of bidirectional attention",
        "sliding_window_bidirectional_overlay": "a bidirectional window",
        "padding_mask_function": "a padding mask",
    }
    raise UntraceableError(f"the attention mask uses {known.get(head, f'the function {name}')}, which is not supported")


def mask(
    batch_size: int = 1,
    q_length: int | None = None,
    kv_length: int | None = None,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **_: Any,
) -> torch.Tensor:
    """The mask function that transformers calls; returns the marker. Raises `UntraceableError` for a mask it cannot
    describe.
    """
    if attention_mask is not None:
        raise UntraceableError(
            "the model builds its attention mask from a two-dimensional mask, which is not supported"
        )
    spec = MaskSpec(causal=True) if mask_function is None else describe(mask_function)
    like = torch.empty((), dtype=dtype, device=device)
    out = torch.ops.inferir.mask(like, q_length, kv_length, str(spec.reads), spec.causal)
    assert isinstance(out, torch.Tensor)
    return out


@functools.cache
def register() -> None:
    """Make `attn_implementation="inferir"` known to transformers (once)."""
    hf = api()
    hf.attention_functions.register(IMPLEMENTATION, attention)
    hf.mask_functions.register(IMPLEMENTATION, mask)
