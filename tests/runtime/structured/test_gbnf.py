"""Grammars in the GBNF notation have exactly the texts that the notation says."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest
from grammars import accepts, write

from inferir.runtime.structured import Grammar

Compile = Callable[..., Grammar]
Reason = Callable[..., str]
JSON = r"""
# JSON, as the examples of the notation have it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

ws ::= | " " | "\n" [ \t]{0,20}
"""


def balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if depth < 0 or c not in "()x":
            return False
    return depth == 0


def separated(text: str) -> bool:
    """Texts in brackets, or nothing, with an x between two."""
    if not text:
        return True
    if any(c == "x" and separated(text[:i]) and separated(text[i + 1 :]) for i, c in enumerate(text)):
        return True
    return text[0] == "(" and text[-1] == ")" and len(text) > 1 and separated(text[1:-1])


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


CASES: list[tuple[str, str, Callable[[str], bool]]] = [
    ('root ::= [a-z]* "b"', "abx", matches("[a-z]*b")),
    ('root ::= ("a" | "ab") "b"', "abx", matches("(a|ab)b")),
    ('root ::= "a" | "ab" | "abb"', "ab", matches("a|ab|abb")),
    ('root ::= x{2} y{1,} z{0,1} w{,2}\nx ::= "a"\ny ::= "b"\nz ::= "c"\nw ::= "d"', "abcd", matches("aab+c?d{0,2}")),
    ("root ::= ( x )*\nx ::= ( | [^a] )", "ab\n", matches("[^a]*")),
    ('root ::= . "b"', "ab\né", matches("(?s:.)b")),
    ('root ::= "(" root ")" root | "x" root | ""', "()x", balanced),
    ('root ::= root "x" root | "(" root ")" |', "()x", separated),
    # Terminals that would read on: the lexer must not take what the text goes on with.
    ('root ::= [ab]+ ("b" root)?', "abx", matches("[ab]+")),
    ('root ::= item ("," root)?\nitem ::= [a-b,]* "a"', "ab,", matches("[ab,]*a")),
    ('root ::= e\ne ::= "a" e "b" | w\nw ::= [ab]*', "ab", matches("[ab]*")),
    ('root ::= ("a" | "ab") rest\nrest ::= "b" rest | "x"', "abx", matches("(a|ab)b*x")),
    ('root ::= l\nl ::= "a" l | m\nm ::= "aa" | "ab" "b"?', "ab", matches("a*(aa|abb?)")),
    (
        'root ::= s\ns ::= n "+" s | n\nn ::= [0-1]+ ("." [0-1]+)?',
        "01.+",
        matches(r"([01]+(\.[01]+)?\+)*[01]+(\.[01]+)?"),
    ),
    ('root ::= w root | w\nw ::= [ab]{2} | "a"', "ab", matches("([ab]{2}|a)+")),
    ('root ::= "\\x61\\u0062" "\\n"? [\\]\\-^]?', "ab\n]-^", matches(r"ab\n?[\]\-^]?")),
    ('root ::= r-1 R_2\nr-1 ::= "a"\nR_2 ::= r-1 | "b"', "ab", matches("a[ab]")),
    ('root ::= a | b\na ::= "x" a?\nb ::= "x" b "y" | "y"', "xy", lambda t: bool(re.fullmatch("x+", t)) or mirrored(t)),
]


def mirrored(text: str) -> bool:
    n = text.count("x")
    return text == "x" * n + "y" * (n + 1)


@pytest.mark.parametrize(("grammar", "characters", "expected"), CASES, ids=[c[0][:40] for c in CASES])
def test_every_short_text(compile_: Compile, grammar: str, characters: str, expected: Callable[[str], bool]) -> None:
    compiled = compile_("grammar", grammar)
    seen = set()
    for length in range(6 if len(characters) < 4 else 5):
        for text in map("".join, itertools.product(characters, repeat=length)):
            seen.add(expected(text))
            assert accepts(compiled, text) == expected(text), text
    assert seen == {True, False} or grammar.startswith("root ::= e")


def test_json(compile_: Compile) -> None:
    grammar = compile_("grammar", JSON)
    value = {"a": [1, -2.5e3, 'x"y\\ é😀'], "b": {"c": None, "d": True}, "": []}
    text = json.dumps(value, ensure_ascii=False)
    assert accepts(grammar, text)
    assert accepts(grammar, text.replace("e3", "e+3").replace("é", "\\u00e9").replace("{", "{\n\t "))
    for wrong in (text[:-1], text + "x", text.replace("null", "nul"), text.replace('"x', "'x"), "[1]", '{"a":01}'):
        assert not accepts(grammar, wrong)
    for seed in range(20):
        found = write(grammar, seed, 300)
        if found is not None:
            json.loads(found)


@pytest.mark.parametrize(
    ("grammar", "part"),
    [
        ("root ::= x", "line 1: there is no rule x"),
        ('root ::= "a"\n# x\nroot ::= "b"', "line 3: the rule root is defined twice"),
        ('start ::= "a"', "no rule root"),
        ("root ::= root", "never ends"),
        ('root ::= "a" root', "never ends"),
        ('root ::= "a\n', "line 1: unexpected '\"': it is not closed"),
        ("root ::=\n [a", "line 2: unexpected '['"),
        ('root ::= ("a"', "line 1: '(' is not closed"),
        ('root ::= "a")', "')' without '('"),
        ('root ::= "\\q"', "unknown escape '\\\\q'"),
        ('root ::= "\\d"', "unknown escape"),
        ('root ::= "\\uD800"', "surrogate"),
        ('root ::= "\\U00110000"', "no character"),
        ("root ::= [z-a]", "ends before it starts"),
        ("root ::= []", "empty"),
        ("root ::= *", "nothing stands before '*'"),
        ('root ::= "a"{3,2}', "at least"),
        ('root ::= "a"{}', "no number"),
        ('root ::= "a"**', "repeats a repetition"),
        ('root ::= "a"{9999999}', "more than"),
        ("root ::= <think>", "special tokens"),
        ("root ::= !<[7]>", "special tokens"),
        ("root ::= 'a'", 'texts stand in "..."'),
        ('%llguidance {}\nstart: "a"', "line 1: unexpected '%'"),
        ('"a"', "expected a rule"),
    ],
)
def test_wrong_grammars_name_the_line(reason: Reason, grammar: str, part: str) -> None:
    assert part in reason("grammar", grammar)


def test_a_pair_of_surrogates_is_one_character(compile_: Compile) -> None:
    assert accepts(compile_("grammar", 'root ::= "\\uD83D\\uDE00" [\\U0001F601-\\U0001F602]'), "😀😂")
