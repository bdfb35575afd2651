"""Masks allow exactly what the grammar allows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from artifacts import write_tokenizer
from grammars import EOS, SIZE, VOCABULARY, accepts, allowed, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferir.ir.contract.step_inputs import mask_words
from inferir.ir.errors import EngineError
from inferir.runtime.structured import Grammar, GrammarCompiler, StructuredSpec
from inferir.runtime.structured.vocabulary import Vocabulary
from inferir.runtime.text.tokenizer import Tokenizer

Compile = Callable[..., Grammar]
PATTERNS = ["a+b?c{2,3}", "(x|yz)*w", "[a-c]{0,4}", "[^b]a", "ab|ac|b", r"\d{2}-\d{2}", "a(b(c|d))?"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_accepts_what_re_accepts(compile_: Compile, pattern: str) -> None:
    grammar = compile_("regex", pattern)
    words = {w for seed in range(30) if (w := write(grammar, seed)) is not None}
    assert words
    for word in words:
        assert re.fullmatch(pattern, word)
        for other in (word + "a", word[:-1], word[1:], word + word, word.replace("a", "b")):
            if other != word:
                assert accepts(grammar, other) == bool(re.fullmatch(pattern, other)), other


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("abcd", max_size=8))
def test_any_text_against_a_regex(compile_: Compile, text: str) -> None:
    pattern = "(a|bc){1,3}d*"
    assert accepts(compile_("regex", pattern), text) == bool(re.fullmatch(pattern, text))


def test_the_mask_of_every_step_is_the_set_of_next_bytes(compile_: Compile) -> None:
    grammar = compile_("choice", ["cat", "car", "dog"])
    state = grammar.new_state()
    seen = []
    for byte in b"car":
        seen.append(bytes(allowed(state)))
        assert not state.accept(ord("z"))
        assert not state.accept(EOS)
        assert state.accept(byte)
    assert seen == [b"cd", b"a", b"rt"]
    assert allowed(state) == [EOS]
    assert not state.finished
    assert state.accept(EOS)
    assert state.finished
    assert allowed(state) == [EOS]
    assert not state.accept(EOS)


def test_a_grammar_that_allows_everything_says_so(compile_: Compile) -> None:
    state = compile_("grammar", r"root ::= [\x00-\U0010ffff]*").new_state()
    row = np.zeros(mask_words(len(VOCABULARY.tokens)), np.int32)
    assert state.fill(row) in (True, False)
    assert {EOS, ord("a"), 0} <= set(allowed(state))


def test_states_of_one_grammar_are_independent(compile_: Compile) -> None:
    grammar = compile_("choice", ["ab", "cd"])
    one, two = grammar.new_state(), grammar.new_state()
    assert one.accept(ord("a"))
    assert allowed(two) == list(b"ac")
    assert allowed(one) == list(b"b")


def test_other_stop_tokens(compile_: Compile) -> None:
    """Tokens with a text of their own stay text, and ids outside the vocabulary are passed over."""
    state = compile_("choice", ["a"]).new_state([258, 259, ord("a"), 10**9])
    assert allowed(state) == [ord("a")]
    assert not state.end()
    assert state.accept(ord("a"))
    assert allowed(state) == [EOS, 258, 259]
    assert state.accept(259)
    assert state.finished


def test_a_text_can_be_ended_where_it_is_complete(compile_: Compile) -> None:
    state = compile_("regex", "a+").new_state()
    assert not state.end()
    assert state.accept(ord("a"))
    assert state.end()
    assert state.finished
    assert state.end()


def test_tokens_of_several_bytes_and_padding() -> None:
    tokens = [b'{"', b'a"', b":", b" 1", b"}", b"1}", b'":', b"a", b'"', b"", "é".encode()[:1], "é".encode()[1:]]
    compiler = GrammarCompiler(Vocabulary(tokens + [b""] * 30, [9]))
    try:
        schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
        state = compiler.compile(StructuredSpec("json_schema", schema)).new_state()
        assert allowed(state, 42) == [0]
        for token, following in [(0, [1, 7]), (7, [6, 8]), (6, [3, 5]), (3, [4]), (4, [9])]:
            assert state.accept(token)
            assert allowed(state, 42) == following
        state = compiler.compile(StructuredSpec("choice", ["é"])).new_state()
        assert allowed(state, 42) == [10]
        assert state.accept(10)
        assert allowed(state, 42) == [11]
    finally:
        compiler.close()


def test_vocabulary_of_a_byte_level_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    vocabulary = Vocabulary.of(tokenizer, 270, [257, 999])
    assert len(vocabulary.tokens) == 270
    assert vocabulary.stop_ids == [257]
    assert sorted(vocabulary.tokens[:256]) == [bytes([i]) for i in range(256)]
    assert set(vocabulary.tokens[256:]) == {b""}
    with pytest.raises(EngineError, match="end-of-text"):
        Vocabulary.of(tokenizer, 270, [])


def test_vocabulary_with_byte_fallback() -> None:
    import tokenizers
    from tokenizers import decoders, models

    vocab = {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "▁a": 3, "b": 4}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "</s>"])
    assert Vocabulary.of(Tokenizer(backend), 6, [1]) == Vocabulary(
        [b"", b"", b"\n", b" a", b"b", b""], [1], {0: "<unk>"}
    )


def test_a_tokenizer_without_known_bytes_is_refused() -> None:
    import tokenizers
    from tokenizers import models

    with pytest.raises(EngineError, match="byte fallback"):
        Vocabulary.of(Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a"))), 1, [0])
    assert len(VOCABULARY.tokens) == SIZE
