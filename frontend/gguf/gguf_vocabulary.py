"""The vocabulary that a GGUF file holds, checked: tokens, their kinds and scores, merges, ids of special tokens, and
the tokens that are cut out of a text before it is split: control tokens and those that a vocabulary's author added.

Everything that is broken is a `FrontendError` of one line that names the key; nothing is mended in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferir.ir.errors import FrontendError

MODEL = "tokenizer.ggml.model"
TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
SCORES = "tokenizer.ggml.scores"
MERGES = "tokenizer.ggml.merges"

# Values of tokenizer.ggml.token_type; 0 says nothing and counts as normal.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# How files say that there is no such token: -1, also where the type has no sign.
NO_TOKEN = (-1, 2**32 - 1)

# Keys of ids, and the name by which transformers' files call the token (None: no name there).
_NAMED = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",
    "cls": "cls_token",
    "mask": "mask_token",
    "eot": None,
    "eom": None,
}
# For completing a gap in a text, which requests spell out themselves.
_INFILL = ["fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle"]
ID_KEYS: dict[str, str | None] = {
    f"tokenizer.ggml.{kind}_token_id": name for kind, name in (_NAMED | dict.fromkeys(_INFILL)).items()
}

_READ = """
model pre tokens token_type scores merges add_bos_token add_eos_token add_space_prefix remove_extra_whitespaces
precompiled_charsmap suppress_tokens
"""
TEMPLATE, TEMPLATES, NAMED_TEMPLATE = (
    "tokenizer.chat_template",
    "tokenizer.chat_templates",
    "tokenizer.chat_template.",
)
# Every key under `tokenizer.` that is read, and why another may be ignored; but `NAMED_TEMPLATE`, which begins a key.
TOKENIZER_KEYS: dict[str, str] = {
    **dict.fromkeys([*ID_KEYS, *(f"tokenizer.ggml.{name}" for name in _READ.split()), TEMPLATE, TEMPLATES], "read"),
    "tokenizer.ggml.add_sep_token": "separators stand between the two texts of a pair, which decoders are not given",
    "tokenizer.ggml.token_type_count": "kinds of segments, which only encoders embed",
    "tokenizer.ggml.normalizer.lowercase": "read by WordPiece tokenizers only, which are refused",
    "tokenizer.ggml.normalizer.strip_accents": "read by WordPiece tokenizers only, which are refused",
    "tokenizer.huggingface.json": "the same tokenizer in another form; the other keys are what readers agree on",
    "tokenizer.rwkv.world": "the vocabulary of RWKV tokenizers, which are refused",
}


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


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """tokens and kinds by id; index: id by token. special: id by its key, as far as the file states it."""

    tokens: list[str]
    kinds: list[int]
    index: dict[str, int]
    special: dict[str, int]

    def of_kind(self, *kinds: int) -> list[int]:
        """Ids of the tokens of these kinds."""
        return [i for i, kind in enumerate(self.kinds) if kind in kinds]


def vocabulary(stated: Mapping[str, Any]) -> Vocabulary:
    """The tokens in a file's metadata. Raises `FrontendError` naming the key that is missing or broken."""
    tokens = _list(stated, TOKENS, str)
    if not tokens:
        raise FrontendError(f"{TOKENS}: the list is empty")
    index = {token: i for i, token in enumerate(tokens)}
    if len(index) != len(tokens):
        twice = next(i for i, token in enumerate(tokens) if index[token] != i)
        raise FrontendError(f"{TOKENS}: ids {twice} and {index[tokens[twice]]} are the same token {tokens[twice]!r}")
    kinds = _list(stated, TYPES, int) if TYPES in stated else [NORMAL] * len(tokens)
    _same_length(TYPES, kinds, tokens)
    wrong = next((i for i, kind in enumerate(kinds) if not 0 <= kind <= BYTE), None)
    if wrong is not None:
        raise FrontendError(f"{TYPES}: token {wrong} has type {kinds[wrong]}; 0 to {BYTE} are known")
    return Vocabulary(tokens=tokens, kinds=kinds, index=index, special=_special(stated, len(tokens)))


def scores(stated: Mapping[str, Any], tokens: list[str]) -> list[float]:
    """One finite number per token."""
    values = _list(stated, SCORES, float)
    _same_length(SCORES, values, tokens)
    wrong = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if wrong is not None:
        raise FrontendError(f"{SCORES}: the score of token {wrong} is {values[wrong]}")
    return values


def merges(stated: Mapping[str, Any], index: Mapping[str, int]) -> tuple[list[tuple[str, str]], int]:
    """Pairs of tokens that become one, the most urgent first, and how many were listed again and left out.

    A pair is written with a blank between its parts; the first part may begin with a blank itself.
    """
    pairs: dict[tuple[str, str], None] = {}
    lines = _list(stated, MERGES, str)
    for i, line in enumerate(lines):
        at = line.find(" ", 1)
        pair = (line[:at], line[at + 1 :])
        if at < 0 or not pair[1]:
            raise FrontendError(f"{MERGES}: entry {i}, {line!r}, is not a pair of tokens with a blank between them")
        for part in (*pair, pair[0] + pair[1]):
            if part not in index:
                raise FrontendError(
                    f"{MERGES}: entry {i}, {line!r}, needs the token {part!r}, which is not in {TOKENS}"
                )
        pairs[pair] = None
    return list(pairs), len(lines) - len(pairs)


def flag(stated: Mapping[str, Any], key: str, default: bool) -> bool:
    """A value that is true or false."""
    value = stated.get(key, default)
    if not isinstance(value, bool):
        raise FrontendError(f"{key}: expected true or false, found {_shown(value)}")
    return value


def text(stated: Mapping[str, Any], key: str) -> str | None:
    """A text, or None where the key is absent."""
    value = stated.get(key)
    if value is not None and not isinstance(value, str):
        raise FrontendError(f"{key}: expected a text, found {_shown(value)}")
    return value


def texts(stated: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts, empty where the key is absent."""
    return _list(stated, key, str) if key in stated else []


def _special(stated: Mapping[str, Any], size: int) -> dict[str, int]:
    found = {}
    for key in ID_KEYS:
        if key not in stated:
            continue
        value = stated[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise FrontendError(f"{key}: expected a token id, found {_shown(value)}")
        if value in NO_TOKEN:
            continue
        if not 0 <= value < size:
            raise FrontendError(f"{key}: {value} is no token id; {TOKENS} has {size} tokens")
        found[key] = value
    return found


def _list(stated: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    if key not in stated:
        raise FrontendError(f"{key}: the file lacks this key, so its tokenizer cannot be read")
    values = stated[key]
    accepted = (float, int) if kind is float else (kind,)
    if not isinstance(values, list):
        raise FrontendError(f"{key}: expected a list, found {_shown(values)}")
    types = set(map(type, values))
    if not types <= set(accepted):
        i = next(i for i, value in enumerate(values) if type(value) not in accepted)
        raise FrontendError(f"{key}: entry {i} is {_shown(values[i])}, expected {_NAMES[kind]}")
    return values


_NAMES = {str: "a text", int: "a whole number", float: "a number"}


def _same_length(key: str, values: list[Any], tokens: list[str]) -> None:
    if len(values) != len(tokens):
        raise FrontendError(f"{key}: {len(values)} entries for the {len(tokens)} tokens of {TOKENS}")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def unaccounted(stated: Mapping[str, Any]) -> list[str]:
    """Keys under `tokenizer.` that are neither used nor known to be irrelevant."""
    unknown = (key for key in stated if key.startswith("tokenizer.") and key not in TOKENIZER_KEYS)
    return sorted(key for key in unknown if not key.startswith(NAMED_TEMPLATE))


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
