"""The bytes that each token contributes to the text, for tokenizers whose decoder only joins bytes.

Two families cover nearly all models. Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) writes bytes as printable
characters. SentencePiece BPE (Llama 2, Mistral, Gemma) writes a space as U+2581 and falls back to tokens `<0xNN>` for
single bytes. For both, the text of a sequence is the UTF-8 decoding of its tokens' bytes, so that decoding costs one
table look-up per token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(dict[int, bytes]):
    """Bytes by token id, found on first use; an id without token (a padded vocabulary) is empty."""

    def __init__(self, tokenizer: Tokenizer, convert: Callable[[str], bytes]) -> None:
        self._tokenizer = tokenizer
        self._convert = convert

    def __missing__(self, index: int) -> bytes:
        token = self._tokenizer.id_to_token(index) if 0 <= index < 1 << 32 else None
        found = self[index] = b"" if token is None else self._convert(token)
        return found


def token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """The bytes of `tokenizer`'s tokens, or None if its decoder does more than join bytes."""
    if tokenizer.decoder is None:
        return None
    convert = _converter(json.loads(tokenizer.decoder.__getstate__()))
    return None if convert is None else TokenBytes(tokenizer, convert)


def _converter(decoder: dict[str, Any]) -> Callable[[str], bytes] | None:
    if decoder["type"] == "ByteLevel":
        return _byte_level
    steps = decoder.get("decoders", []) if decoder["type"] == "Sequence" else [decoder]
    kinds = [s["type"] for s in steps]
    replaces = [s for s in steps if s["type"] == "Replace"]
    if "ByteFallback" not in kinds or not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return None
    if any(s["pattern"] != {"String": "▁"} or s["content"] != " " for s in replaces):
        return None
    # Strip removes the space that the encoder put before the very first word; generated text continues a prompt.
    if any(s["content"] != " " or s["stop"] for s in steps if s["type"] == "Strip"):
        return None
    return _sentence_piece


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTES[c] for c in token)
    except KeyError:  # an added token: plain text
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the others follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    out = {chr(b): b for b in printable}
    out |= {chr(0x100 + i): b for i, b in enumerate(sorted(set(range(256)) - printable))}
    return out


_BYTES = _byte_alphabet()
