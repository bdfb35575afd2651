"""What becomes of every `tokenizer.*` key of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USED = "used"
_INFILL = "for completing a gap in a text, which requests spell out themselves"

# Key: USED, or why it may be ignored.
TOKENIZER_KEYS: dict[str, str] = {
    "tokenizer.ggml.model": USED,
    "tokenizer.ggml.pre": USED,
    "tokenizer.ggml.tokens": USED,
    "tokenizer.ggml.token_type": USED,
    "tokenizer.ggml.scores": USED,
    "tokenizer.ggml.merges": USED,
    "tokenizer.ggml.bos_token_id": USED,
    "tokenizer.ggml.eos_token_id": USED,
    "tokenizer.ggml.eot_token_id": USED,
    "tokenizer.ggml.eom_token_id": USED,
    "tokenizer.ggml.unknown_token_id": USED,
    "tokenizer.ggml.padding_token_id": USED,
    "tokenizer.ggml.seperator_token_id": USED,
    "tokenizer.ggml.cls_token_id": USED,
    "tokenizer.ggml.mask_token_id": USED,
    "tokenizer.ggml.add_bos_token": USED,
    "tokenizer.ggml.add_eos_token": USED,
    "tokenizer.ggml.add_space_prefix": USED,
    "tokenizer.ggml.remove_extra_whitespaces": USED,
    "tokenizer.ggml.precompiled_charsmap": USED,
    "tokenizer.ggml.suppress_tokens": USED,
    "tokenizer.chat_template": USED,
    "tokenizer.chat_templates": USED,
    "tokenizer.ggml.add_sep_token": "separators stand between the two texts of a pair, which decoders are not given",
    "tokenizer.ggml.token_type_count": "kinds of segments, which only encoders embed",
    "tokenizer.ggml.normalizer.lowercase": "read by WordPiece tokenizers only, which are refused",
    "tokenizer.ggml.normalizer.strip_accents": "read by WordPiece tokenizers only, which are refused",
    "tokenizer.ggml.fim_pre_token_id": _INFILL,
    "tokenizer.ggml.fim_suf_token_id": _INFILL,
    "tokenizer.ggml.fim_mid_token_id": _INFILL,
    "tokenizer.ggml.fim_pad_token_id": _INFILL,
    "tokenizer.ggml.fim_rep_token_id": _INFILL,
    "tokenizer.ggml.fim_sep_token_id": _INFILL,
    "tokenizer.ggml.prefix_token_id": _INFILL,
    "tokenizer.ggml.suffix_token_id": _INFILL,
    "tokenizer.ggml.middle_token_id": _INFILL,
    "tokenizer.huggingface.json": "the same tokenizer in another form; the other keys are what readers agree on",
    "tokenizer.rwkv.world": "the vocabulary of RWKV tokenizers, which are refused",
}
NAMED_TEMPLATE = "tokenizer.chat_template."


def unaccounted(stated: Mapping[str, Any]) -> list[str]:
    """Keys under `tokenizer.` that are neither used nor known to be irrelevant."""
    return sorted(
        key
        for key in stated
        if key.startswith("tokenizer.") and key not in TOKENIZER_KEYS and not key.startswith(NAMED_TEMPLATE)
    )
