"""Pairs of schemas: which exclude each other, and which have a value in common, so that nothing may be proven."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.runtime.structured.disjoint import Exclusion, key
from inferir.runtime.structured.references import Resolver

TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def tagged(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": value}}, "required": ["kind"], **more}


APART = {
    "types": (TEXT, WHOLE),
    "lists of types": ({"type": ["string", "null"]}, {"type": ["integer", "array"]}),
    "nothing": (False, TEXT),
    "constants": ({"const": 1}, {"const": 2}),
    "a boolean is no number": ({"const": True}, {"const": 1}),
    "enums": ({"enum": ["a", "b"]}, {"enum": ["c"]}),
    "a constant of another type": ({"const": "a"}, NUMBER),
    "a fraction": ({"const": 1.5}, WHOLE),
    "a text that is too long": ({"const": "abc"}, {"type": "string", "maxLength": 2}),
    "ranges": ({**NUMBER, "maximum": 1}, {**NUMBER, "minimum": 2}),
    "ranges that meet at an open end": ({**NUMBER, "maximum": 1}, {**NUMBER, "exclusiveMinimum": 1}),
    "lengths": ({**TEXT, "maxLength": 2}, {**TEXT, "minLength": 3}),
    "sizes": ({"type": "array", "maxItems": 0}, {"type": "array", "minItems": 1}),
    "formats": ({**TEXT, "format": "date"}, {**TEXT, "format": "uuid"}),
    "tags": (tagged("a"), tagged("b")),
    "a required key that the other does not allow": (
        tagged("a"),
        {"type": "object", "properties": {"x": {}}, "additionalProperties": False},
    ),
    "every part of anyOf": ({"anyOf": [WHOLE, {"type": "null"}]}, TEXT),
    "a part of allOf": ({"allOf": [{}, WHOLE]}, TEXT),
    "behind a reference": ({"$ref": "#/$defs/whole"}, TEXT),
}
TOGETHER = {
    "anything": (True, TEXT),
    "equal types": (TEXT, TEXT),
    "an integer is a number": (WHOLE, NUMBER),
    "equal numbers": ({"const": 1}, {"const": 1.0}),
    "a shared value": ({"enum": ["a", "b"]}, {"enum": ["b"]}),
    "a constant within": ({"const": "ab"}, {"type": "string", "maxLength": 2}),
    "ranges that meet": ({**NUMBER, "maximum": 1}, {**NUMBER, "minimum": 1}),
    "formats that one text may have": ({**TEXT, "format": "uri"}, {**TEXT, "format": "email"}),
    "tags that need not be there": (tagged("a", required=[]), tagged("b", required=[])),
    "one part of anyOf": ({"anyOf": [WHOLE, TEXT]}, TEXT),
    "a reference into nothing": ({"$ref": "#/$defs/absent"}, TEXT),
}


def proven(a: Any, b: Any) -> bool:
    root = {"$defs": {"whole": WHOLE}, "oneOf": [a, b]}
    return Exclusion(Resolver(root)).proven(a, b)


@pytest.mark.parametrize(("a", "b"), APART.values(), ids=APART)
def test_apart(a: Any, b: Any) -> None:
    assert proven(a, b)
    assert proven(b, a)


@pytest.mark.parametrize(("a", "b"), TOGETHER.values(), ids=TOGETHER)
def test_together(a: Any, b: Any) -> None:
    assert not proven(a, b)
    assert not proven(b, a)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([TEXT, WHOLE, {"type": "null"}], None),
        ([TEXT, WHOLE, NUMBER], (1, 2)),
        ([tagged("a"), tagged("b"), tagged("c")], None),
        ([tagged("a"), tagged("b"), tagged("a")], (0, 2)),
        ([{"const": 1}, {"enum": [2, 3]}, {"enum": [3, 4]}], (1, 2)),
        ([{"const": 1}, TEXT, {"const": "x"}], (1, 2)),
    ],
)
def test_unproven(parts: list[Any], expected: tuple[int, int] | None) -> None:
    assert Exclusion(Resolver({"oneOf": parts})).unproven(parts) == expected


def test_the_budget_ends_the_search() -> None:
    search = Exclusion(Resolver({}))
    search.left = 0
    assert not search.proven(TEXT, WHOLE)
    assert search.left < 0


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("1", 1, False),
        ([1, [2]], [1.0, [2.0]], True),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1.0}, True),
        ({"a": None}, {}, False),
    ],
)
def test_equality_of_json(a: Any, b: Any, equal: bool) -> None:
    assert (key(a) == key(b)) is equal
