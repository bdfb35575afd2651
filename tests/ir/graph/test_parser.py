"""Parse errors carry the line; the text's types are checked against inferred ones."""

import pytest

from inferir.ir.errors import ParseError
from inferir.ir.graph.parser import parse_graph

GOOD = """graph @main(%x: f32[T, 4]) -> (%2 as "y") {
  %1 = tensor.exp(%x) : f32[T, 4]
  %2 = tensor.sum(%1) {dims=(-1,), keepdim=true} : f32[T, 1]
}"""


def test_good_text_parses_with_any_layout() -> None:
    spread = GOOD.replace(" ", "  ").replace(",", " ,\n").replace("{", "\n{\n")
    assert parse_graph(spread).structural_hash() == parse_graph(GOOD).structural_hash()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph @main", "grph @main", r"line 1: expected 'graph', found 'grph'"),
        ('%2 as "y"', '%9 as "y"', r"line 1: output %9 is not defined"),
        ('%2 as "y"', "%2 as y", r"line 1: expected a string, found 'y'"),
        ("%x: f32", "x: f32", r"line 1: expected the name of a value, found 'x'"),
        ("f32[T, 4])", "f31[T, 4])", r"line 1: unknown element type 'f31'"),
        ("f32[T, 4])", "f32[Q, 4])", r"line 1: unknown dimension symbol 'Q'"),
        ("tensor.exp(%x)", "tensor.expp(%x)", r"line 2: unknown op 'tensor\.expp'"),
        ("tensor.exp(%x)", "tensor.exp(%z)", r"line 2: %z is used before it is defined"),
        ("tensor.exp(%x)", "tensor.exp(%x, %x)", r"line 2: tensor\.exp: 2 operands"),
        ("tensor.exp(%x)", "core.input(%x)", r"line 2: core\.input belongs in the graph's head"),
        ("tensor.exp(%x) :", "tensor.exp(%x) ;", r"line 2: unexpected character ';'"),
        ("%1 = tensor", "%x = tensor", r"line 2: %x is defined twice"),
        ("%1 = tensor", "%1, %3 = tensor", r"line 2: tensor\.exp has 1 results, 2 are named"),
        ("dims=(-1,)", "dims=(5,)", r"line 3: tensor\.sum.*axis 5 is out of range"),
        ("dims=(-1,)", "dims=[", r"line 3: not a dimension"),
        ("keepdim=true", "keepdim=", r"line 3: expected a value"),
        ("f32[T, 1]", "f32[T, 2]", r"line 3: tensor\.sum gives f32\[T, 1\], the text says f32\[T, 2\]"),
        ("\n}", "\n} }", r"line 4: unexpected '}' after the graph"),
        ("\n}", "", r"line 3: expected the name of a value, found ''"),
        ("f32[T, 1]", 'f32[T, 1] @ "\\q"', r"line 3: bad string"),
    ],
)
def test_errors_name_the_line(old: str, new: str, message: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ParseError, match=message):
        parse_graph(GOOD.replace(old, new))


def test_every_truncation_is_an_error_and_ends() -> None:
    for end in range(len(GOOD)):
        with pytest.raises(ParseError, match=r"^line \d+: "):
            parse_graph(GOOD[:end])


def test_types_of_results_are_never_taken_on_trust() -> None:
    with pytest.raises(ParseError, match=r"line 1: tensor\.full gives f32\[4\]"):
        parse_graph('graph @m() -> (%1 as "y") { %1 = tensor.full {dtype=f32, shape=(4,), value=0} : f32[5] }')


def test_errors_inside_a_body_have_the_line_of_the_whole_text() -> None:
    text = """graph @m(%x: f32[T, 4]) -> (%1 as "y") {
  %1 = kernel.region(%x) {anchor="rowwise", body=graph @b(%x: f32[T, 4]) -> (%1 as "y") {
    %1 = tensor.nope(%x) : f32[T, 4]
  }, name="k"} : f32[T, 4]
}"""
    with pytest.raises(ParseError, match=r"line 3: unknown op 'tensor\.nope'"):
        parse_graph(text)
