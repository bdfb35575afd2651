"""Incremental text equals the whole text, for every kind of tokenizer, with and without stop strings."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from inferir.runtime.text.detokenizer import BytesDecoder, Detokenizer, WindowDecoder, make_detokenizer
from inferir.runtime.text.tokenizer import Tokenizer

TEXTS = ("plain words", "삼겹살 🍖 世界 👩‍👩‍👧 é", "  two  spaces\n\tand\r\nlines", "naïve café ßß", "<|end|>", "a")


def byte_level() -> Tokenizer:
    """One token per byte, a few longer ones that end inside characters, and a special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = "".join(chr(b) for b in range(0x21, 0x7F))
    words = ["Ġw", "ord", "ä¸", "ĸçķ", "Ł", pieces[:5]]
    vocab = {t: i for i, t in enumerate(dict.fromkeys([*alphabet, *words]))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.add_tokens(["<tool call>"])
    return Tokenizer(backend)


def sentence_piece() -> Tokenizer:
    """Pieces with U+2581 for spaces, and one token per byte."""
    pieces = ["<unk>", "<s>", *[f"<0x{b:02X}>" for b in range(256)], *"▁abcdefghijklmnopqrstuvwxyz", "▁w", "or", "é"]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


def word_piece() -> Tokenizer:
    """A decoder that does more than join bytes."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocab = {t: i for i, t in enumerate(["[UNK]", *letters, *[f"##{c}" for c in letters], "hello", "wor"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return Tokenizer(backend)


KINDS = {"byte_level": byte_level(), "sentence_piece": sentence_piece(), "word_piece": word_piece()}


def stream(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    pieces = []
    for i in ids:
        pieces.append(detokenizer.push(i))
        if detokenizer.stopped_by is not None:
            break
    return [*pieces, detokenizer.finish()]


def test_fast_path_is_taken_where_it_is_right() -> None:
    assert {k: t.bytes is not None for k, t in KINDS.items()} == {
        "byte_level": True,
        "sentence_piece": True,
        "word_piece": False,
    }


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_and_are_whole_characters(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoders = (BytesDecoder(tokenizer.bytes, frozenset()), WindowDecoder(tokenizer, skip_special=False))
    for decoder in decoders:
        pieces = stream(Detokenizer(decoder), ids)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False) == text
        assert not any("\ufffd" in p for p in pieces)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=40))
def test_byte_level_equals_the_library_for_any_ids(ids: list[int]) -> None:
    tokenizer = KINDS["byte_level"]
    for skip in (True, False):
        pieces = stream(make_detokenizer(tokenizer, skip_special=skip), ids)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 54), max_size=30))
def test_window_decoder_equals_the_library(ids: list[int]) -> None:
    tokenizer = KINDS["word_piece"]
    assert "".join(stream(make_detokenizer(tokenizer), ids)) == tokenizer.decode(ids)


def test_window_decoder_continues_the_prompt() -> None:
    tokenizer = KINDS["word_piece"]
    hello, world = tokenizer.id("hello"), tokenizer.id("wor")
    assert hello is not None
    assert world is not None
    assert "".join(stream(make_detokenizer(tokenizer, prompt=[hello]), [world])) == " wor"


@pytest.mark.parametrize("kind", list(KINDS))
def test_ids_without_token_are_empty(kind: str) -> None:
    tokenizer = KINDS[kind]
    one = tokenizer.encode("a", add_special_tokens=False)
    assert "".join(stream(make_detokenizer(tokenizer), [10**6, *one, 5000, -1, 2**40])).strip() == "a"
    assert tokenizer.decode([10**6, *one, -1, 2**40]) == "a"


def test_special_tokens_are_skipped_or_kept() -> None:
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("a<|end|>b<tool call>", add_special_tokens=False)
    assert "".join(stream(make_detokenizer(tokenizer), ids)) == "ab<tool call>"
    assert "".join(stream(make_detokenizer(tokenizer, skip_special=False), ids)) == "a<|end|>b<tool call>"


def test_incomplete_character_at_the_end_and_endless_invalid_bytes() -> None:
    tokenizer = KINDS["sentence_piece"]
    byte = tokenizer.id("<0xF0>")
    assert byte is not None
    for decoder in (BytesDecoder(tokenizer.bytes, frozenset()), WindowDecoder(tokenizer, skip_special=True)):
        pieces = stream(Detokenizer(decoder), [byte] * 40)
        assert "".join(pieces) == "\ufffd" * 40
        assert max(map(len, pieces)) < 12


class Letters:
    """A decoder whose tokens are given pieces of text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def push(self, token: int) -> str:
        return self.pieces[token]

    def flush(self) -> str:
        return ""


def cut(pieces: Sequence[str], stop: tuple[str, ...], include: bool = False) -> tuple[str, str | None]:
    detokenizer = Detokenizer(Letters(pieces), stop, include_stop=include)
    given_out = stream(detokenizer, range(len(pieces)))
    assert "".join(given_out) == detokenizer.text
    return detokenizer.text, detokenizer.stopped_by


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("ABCDEFGHIJKLMNOP", ("DEFGHIJ",), ("ABC", "DEFGHIJ")),
        ("ABCDEFGHIJKLMNOP", ("DEFX",), ("ABCDEFGHIJKLMNOP", None)),
        ("ABCDEFGHIJKLMNOP", ("CD", "DEF"), ("AB", "CD")),
        ("ABCDE", ("ABCDE", "BC"), ("A", "BC")),
        ("ABCDE", ("CDE", "DE"), ("AB", "CDE")),
        ("one two END three", ("END",), ("one two ", "END")),
        ("one two END three", ("wo E",), ("one t", "wo E")),
        ("aabaabaaab", ("aabaaa",), ("aab", "aabaaa")),
        ("世界", ("世",), ("", "世")),
        ("held to the end DE", ("DEF",), ("held to the end DE", None)),
    ],
)
def test_stop_strings_do_not_depend_on_the_pieces(text: str, stop: tuple[str, ...], expected: tuple[str, str]) -> None:
    for size in (1, 2, 3, 7, 100):
        pieces = (
            ["".join(p) for p in itertools.batched(text, size)]
            if hasattr(itertools, "batched")
            else [text[i : i + size] for i in range(0, len(text), size)]
        )
        assert cut(pieces, stop) == expected
    if expected[1]:
        assert cut([text], stop, include=True)[0] == expected[0] + expected[1]


@settings(max_examples=300, deadline=None)
@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), min_size=30, max_size=30),
)
def test_stop_strings_against_a_plain_search(text: str, stops: list[str], sizes: list[int]) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    expected = (text, None)
    if ends:
        _, start, stop = min(ends)
        expected = (text[:start], stop)
    assert cut([p for p in pieces if p], tuple(stops)) == expected


def test_what_cannot_be_a_stop_string_is_given_out_at_once() -> None:
    detokenizer = Detokenizer(Letters(["ab", "cE", "N", "x", "EN"]), ("END",))
    assert [detokenizer.push(i) for i in range(5)] == ["ab", "c", "", "ENx", ""]
    assert detokenizer.finish() == "EN"


def test_cost_is_linear() -> None:
    def seconds(count: int) -> float:
        detokenizer = make_detokenizer(KINDS["byte_level"], stop=("x" * 500, "y" * 500))
        start = time.process_time()
        for _ in range(count):
            detokenizer.push(5)
        return time.process_time() - start

    small = min(seconds(4000) for _ in range(3))
    assert min(seconds(16000) for _ in range(3)) < 12 * small
