"""What of a GBNF grammar becomes a terminal."""

from __future__ import annotations

import pytest

from inferir.runtime.structured import gbnf_lark
from inferir.runtime.structured.gbnf import parse

AZ = r"/[\x{61}-\x{7a}]/"


@pytest.mark.parametrize(
    ("grammar", "rules"),
    [
        pytest.param(
            'root ::= "a" [a-z]*',
            ["r0: T0", f'T0: ("a" ({AZ}){{0,}})'],
            id="what is regular as a whole is one terminal",
        ),
        pytest.param(
            'root ::= "(" root ")" | "x"',
            ["r0: ((T0 r0 T1) | T2)", 'T0: "("', 'T1: ")"', 'T2: "x"'],
            id="recursion leaves terminals between its parts",
        ),
        pytest.param(
            'root ::= word " " root | word "!"\nword ::= [a-z]+',
            ["r0: ((T0 r0) | T1)", 'T0: (U0 " ")', 'T1: (U0 "!")', f"U0: ({AZ}){{1,}}"],
            id="regular neighbours are joined, and share rules",
        ),
        pytest.param(
            'root ::= [a-z]* "b" root | "."',
            ["r0: (((T0){0,} T1 r0) | T2)", f"T0: {AZ}", 'T1: "b"', 'T2: "."'],
            id="a terminal that could read on is taken apart",
        ),
    ],
)
def test_terminals(grammar: str, rules: list[str]) -> None:
    assert gbnf_lark.to_lark(parse(grammar)) == "\n".join(["start: r0", *rules]) + "\n"


def test_beyond_the_work_that_is_allowed_characters_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = parse('root ::= "ab" root "cd" | "x"')
    assert 'T0: "ab"' in gbnf_lark.to_lark(grammar)
    monkeypatch.setattr(gbnf_lark, "MAX_WORK", 0)
    assert 'T0: "a"' in gbnf_lark.to_lark(grammar)
