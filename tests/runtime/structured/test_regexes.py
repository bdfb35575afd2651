"""Regexes mean what the documented dialect says, and what is not supported is refused by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from grammars import accepts

from inferir.runtime.structured import Grammar
from inferir.runtime.structured.regexes import check_regex

Compile = Callable[..., Grammar]
Reason = Callable[..., str]

# Where Python's `re` agrees with the dialect, it is the reference, on every short text of these characters.
SAME = [
    *("a|b", "ab|ac|b", "^ab$", "^a|b$", "(?:^a)b", "a(b$)", r"\Aab", "(^a|^b)c?", "^^a$$", "a*b+c?", "(ab)*c{0,2}"),
    *("a{2}", "a{1,2}b", "a{2,}", "a+?b", "a*?", "(a??b)+", "[abc]{2}", "[^ab]", "[a-c]-", "[]a]", "[^]a]", "[a-]"),
    *(".", "a.c", "(?s).", "(?s:.)b?", "(?i)aB", "(?i:a)b", "(?P<n>a)b", "(?:a|b)c", "()", "a||b", "|a", r"\.", r"\n"),
    *(r"\x61\u0062", r"[\x61-\x63]", r"\$|\^", r"[$^.]", r"a\-b", r"\//", "[a/]", r"[\]\[]", r"\s", r"[^\s]", "a\nb"),
]
CHARACTERS = "abcAB.-^$/]\n "
DIALECT = [
    (r"yes\z", {"yes": True, "yesz": False}),
    ("[[:digit:]]+", {"12": True, "[": False, "d": False}),
    ("[[:^alpha:]]", {"1": True, "a": False}),
    ("[a-z&&[^b]]", {"a": True, "b": False, "&": False}),
    ("[a-d--[b]]", {"a": True, "b": False, "-": False}),
    ("[ab~~bc]", {"a": True, "b": False, "c": True}),
    (r"\d", {"5": True, "٣": False, "４": False}),
    (r"\D", {"5": False, "٣": True}),
    (r"[\d.]+", {"1.5": True, "٣": False}),
    (r"[^\d]", {"1": False, "é": True}),
    (r"\w+", {"a_1": True, "é": False}),
    (r"\W", {"é": True, "a": False}),
    (r"\s", {"\u00a0": True, "\u2028": True, "x": False}),
    (r"\p{L}+", {"éя": True, "1": False}),
    (r"\p{Greek}", {"α": True, "a": False}),
    (r"\u{1F600}|\U0001F601|\x{1F602}", {"😀": True, "😁": True, "😂": True, "😃": False}),
    (".", {"\r": True, "\u2028": True, "\n": False, "😀": True}),
    ("(?U)a+", {"aaa": True}),
    ("[^a]", {"😀": True, "a": False}),
    ("é{2}", {"éé": True, "é": False}),
]
REFUSED = [
    (r"yes\Z", r"\Z"),
    (r"x\h", r"\h"),
    (r"\Qa.b\E", r"\Q"),
    (r"\ya", r"\y"),
    (r"\R", r"\R"),
    (r"\X", r"\X"),
    (r"\K", r"\K"),
    (r"\G", r"\G"),
    (r"\cA", r"\c"),
    (r"\e", r"\e"),
    (r"\N", r"\N"),
    (r"\C", r"\C"),
    ("a$b", "$ or"),
    ("a^b", "^ or"),
    ("$a", "$ or"),
    (r"a\Ab", r"\A"),
    (r"a\zb", r"\z"),
    ("(?m)^a$", "(?m)"),
    (r"a\b", r"\b"),
    (r"\Ba", r"\B"),
    (r"[\b]", r"\b"),
    (r"\<a", "boundary"),
    ("(?=a)a", "look-ahead"),
    ("(?!a)b", "look-ahead"),
    ("(?<=a)b", "look-behind"),
    ("(?<!a)b", "look-behind"),
    (r"(a)\1", "backreferences"),
    (r"(?P<n>a)(?P=n)", "unrecognized flag: 'P'"),
    (r"\k<n>", r"\k"),
    (r"\012", "backreferences"),
    ("(?>a)", "flag"),
    ("(?#c)a", "flag"),
    ("(?x) a # b", "flag x"),
    ("a++", "a++"),
    ("(a)*+b", "*+"),
    ("a{2}{3}", "{2}{3}"),
    ("a+??", "a+??"),
    ("a{,3}", "repetition"),
    ("a{", "repetition"),
    (r"\p{Foo}", "Unicode property"),
    (r"(?-u)\xff", "UTF-8"),
    ("a\\", "backslash"),
    (r"[\d-\w]x{1,2}[", "unclosed"),
]


@pytest.mark.parametrize("pattern", SAME)
def test_what_python_reads_in_the_same_way(compile_: Compile, pattern: str) -> None:
    grammar = compile_("regex", pattern)
    matches = re.compile(pattern, re.ASCII if r"\s" not in pattern else 0)
    found = 0
    for length in range(3):
        for text in map("".join, itertools.product(CHARACTERS, repeat=length)):
            expected = bool(matches.fullmatch(text))
            found += expected
            assert accepts(grammar, text) == expected, text
    assert found or pattern in ("a.c", "a\nb", "a\\-b", r"\//")
    for text in ("aaa", "abc", "a.c", "a-b", "a\nb", "//"):
        assert accepts(grammar, text) == bool(matches.fullmatch(text)), text


@pytest.mark.parametrize(("pattern", "texts"), DIALECT)
def test_the_rest_of_the_dialect(compile_: Compile, pattern: str, texts: dict[str, bool]) -> None:
    grammar = compile_("regex", pattern)
    assert {text: accepts(grammar, text) for text in texts} == texts


@pytest.mark.parametrize(("pattern", "part"), REFUSED)
def test_what_is_not_supported_is_named(reason: Reason, pattern: str, part: str) -> None:
    message = reason("regex", pattern)
    assert part in message
    assert "cannot be used" in message


@pytest.mark.parametrize(
    "pattern", ["[*+?]", r"\++", "[a++]", r"a\+?", "(?:a+)+", "[[a]+]+", "x{2}?", "[]+*]", r"[\]+*]"]
)
def test_what_looks_like_a_repeated_repetition(pattern: str) -> None:
    assert check_regex(pattern) is None


def test_texts_are_utf_8(compile_: Compile) -> None:
    for pattern in ("[^a]*", "(?s).*", r"\W*", r"[\x80-\xff]*"):
        state = compile_("regex", pattern).new_state()
        for byte in (0x80, 0xBF, 0xC0, 0xC1, 0xF5, 0xFF):
            assert not state.accept(byte), (pattern, byte)
        assert state.accept(0xC3)
        assert not state.end()
        assert not state.accept(ord("a"))
        assert state.accept(0xA9)
        assert state.end()
