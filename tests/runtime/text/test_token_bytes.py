"""Bytes of single tokens, for each kind of decoder that only joins them."""

from __future__ import annotations

import pytest
from tiny_tokenizers import byte_level, pieces
from tokenizers import Tokenizer, decoders

from inferir.runtime.text.token_bytes import token_bytes


@pytest.mark.parametrize(
    ("tokenizer", "token", "expected"),
    [
        (byte_level(), "wor", b"wor"),
        (byte_level(), "Ġx", b" x"),
        (byte_level(), "Ċ", b"\n"),
        (byte_level(), "ÿ", b"\xff"),
        (byte_level(), "<tool_call>", b"<tool_call>"),
        (pieces(), "▁wo", b" wo"),
        (pieces(), "<0xE2>", b"\xe2"),
        (pieces(), "</s>", b"</s>"),
    ],
)
def test_bytes(tokenizer: Tokenizer, token: str, expected: bytes) -> None:
    table = token_bytes(tokenizer)
    assert table is not None
    index = tokenizer.token_to_id(token)
    assert table[index] == table[index] == expected


@pytest.mark.parametrize("index", [-1, 10_000, 1 << 32])
def test_ids_without_a_token_are_empty(index: int) -> None:
    table = token_bytes(byte_level())
    assert table is not None
    assert table[index] == b""


STRIP = decoders.Strip(" ", 1, 0)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), STRIP]),
        decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ],
)
def test_decoders_that_do_more(decoder: decoders.Decoder | None) -> None:
    tokenizer = pieces()
    tokenizer.decoder = decoder
    assert token_bytes(tokenizer) is None
