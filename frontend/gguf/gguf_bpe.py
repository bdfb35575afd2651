"""Byte-pair encoding with listed merges: `tokenizer.ggml.model` "gpt2" (over bytes) and "gemma4" (over text)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferir.frontend.gguf.gguf_pretokenizers import PRE, Rule, rule
from inferir.frontend.gguf.gguf_vocabulary import MERGES, MODEL, TOKENS, Vocabulary, merges, text
from inferir.ir.errors import FrontendError

SPACE = "▁"  # stands for a blank in vocabularies of text
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Bytes that no UTF-8 text holds, those of planes without characters, and control characters but tab and line ends:
# many vocabularies lack some of them.
_RARE = {0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100), 0x7F, *range(0x20)} - {0x09, 0x0A, 0x0D}


def bpe(stated: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[dict[str, Any], Rule, list[str]]:
    """The parts of tokenizer.json that split, merge and join, the rule by which the text is split, and warnings.

    Raises `FrontendError` naming the key that is missing or broken, or the rule that is not supported.
    """
    warnings = []
    name = "gemma4" if stated.get(MODEL) == "gemma4" else text(stated, PRE)
    if not name:
        warnings.append(f"{PRE} is missing: the text is split by the rule 'default', which may not be the model's own")
    split = rule(name or "default")
    pairs, repeated = merges(stated, vocabulary.index)
    if repeated:
        warnings.append(f"{MERGES}: {repeated} entries are listed again and have no effect")
    parts = _plain(split, vocabulary) if split.plain else _bytes(split, vocabulary, warnings)
    parts["model"] = model(vocabulary, pairs, byte_fallback=split.plain, ignore_merges=split.ignore_merges)
    return parts, split, warnings


def model(
    vocabulary: Vocabulary,
    pairs: Sequence[tuple[str, str]],
    byte_fallback: bool,
    ignore_merges: bool = False,
    unknown: str | None = None,
) -> dict[str, Any]:
    """The part of tokenizer.json that merges. unknown: the token of what has none."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary.index,
        "merges": pairs,
    }


def _bytes(split: Rule, vocabulary: Vocabulary, warnings: list[str]) -> dict[str, Any]:
    alphabet = byte_alphabet()
    lost = [byte for byte in range(256) if alphabet[byte] not in vocabulary.index]
    common = [byte for byte in lost if byte not in _RARE]
    if common:
        warnings.append(f"{TOKENS}: {len(common)} bytes, 0x{common[0]:02X} first, have no token and vanish from texts")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    # A byte without token vanishes, but what stands on either side of it does not merge.
    apart = [_split("[" + "".join(f"\\x{{{ord(alphabet[byte]):x}}}" for byte in lost) + "]")] if lost else []
    return {
        "normalizer": {"type": "NFC"} if split.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*map(_split, split.splits), level, *apart]},
        "decoder": level,
    }


def _plain(split: Rule, vocabulary: Vocabulary) -> dict[str, Any]:
    require_bytes(vocabulary)
    return {
        "normalizer": replace(" ", SPACE),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_split(pattern) for pattern in split.splits]},
        "decoder": text_decoder(),
    }


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(old: str, new: str) -> dict[str, Any]:
    """A step of a normalizer or decoder."""
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def text_decoder(*more: dict[str, Any]) -> dict[str, Any]:
    """The decoder of a vocabulary of text: blanks for their stand-in, bytes joined, and the steps `more`."""
    steps = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {"type": "Sequence", "decoders": [*steps, *more]}


def require_bytes(vocabulary: Vocabulary) -> None:
    """Raise `FrontendError` unless every byte has a token, into which characters without a token fall apart."""
    lost = next((token for token in BYTE_TOKENS if token not in vocabulary.index), None)
    if lost is not None:
        raise FrontendError(
            f"{TOKENS}: the token {lost} is missing; vocabularies without a token per byte are unsupported"
        )


def byte_alphabet() -> list[str]:
    """The character that stands for each byte: printable Latin-1 for itself, the others from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
