"""Tokens that are cut out of a text before it is split: control tokens and those that a vocabulary's author added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferir.frontend.gguf.gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

# Names that only a marker bears. Converters have left some of them as ordinary tokens; they are taken for control
# tokens all the same, for a chat template that writes them means the token.
_MARKERS = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> <|eom_id|>
<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>
<｜end▁of▁sentence｜> [e~[ <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|>
<|prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|> <|fim_pad|>
<fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
"""
MARKERS = frozenset(_MARKERS.split())


def control_ids(vocabulary: Vocabulary) -> tuple[frozenset[int], list[str]]:
    """Ids of control tokens, and those among their texts that the file calls ordinary."""
    ids = set(vocabulary.of_kind(CONTROL, UNKNOWN))
    markers = {vocabulary.index[text] for text in MARKERS if text in vocabulary.index}
    mistyped = sorted(markers - ids)
    return frozenset(ids | markers), [vocabulary.tokens[i] for i in mistyped]


def added_tokens(vocabulary: Vocabulary, control: frozenset[int], stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries of `added_tokens` in tokenizer.json, by id. Empty tokens are left out: no text holds them."""
    ids = sorted(i for i in control.union(vocabulary.of_kind(USER_DEFINED)) if vocabulary.tokens[i])
    left, right = _strips(vocabulary, set(ids), stated)
    return [
        {
            "id": i,
            "content": vocabulary.tokens[i],
            "single_word": False,
            "lstrip": i in left,
            "rstrip": i in right,
            "normalized": False,
            "special": i in control,
        }
        for i in ids
    ]


def _strips(vocabulary: Vocabulary, ids: set[int], stated: Mapping[str, Any]) -> tuple[set[int], set[int]]:
    """Ids that take the white space before them, and behind them, with them. No key of the file says so, but models
    are known for it by name.
    """
    pre, name = str(stated.get("tokenizer.ggml.pre", "")), str(stated.get("general.name", "")).lower()
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return {i for i in ids if vocabulary.tokens[i] == "<mask>"}, set()
    if "phi-3" in name or "phi3" in name:
        return set(), {i for i in ids if vocabulary.tokens[i] not in ("<unk>", "<s>", "<|endoftext|>")}
    if "modern-bert" in name:
        return {i for i in ids if vocabulary.tokens[i] == "[MASK]"}, set()
    return set(), set()
