"""Where references of a schema lead, and where they lead to nothing."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.runtime.structured.references import BrokenReferenceError, Resolver, kind_of, mapped, parts

ROOT: dict[str, Any] = {
    "$id": "http://x/y",
    "$defs": {"a/b": {"type": "string"}, "c~d": True, "e": {"items": {"$anchor": "there"}}},
    "anyOf": [{"const": 1}, {"const": 2}],
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("reference", "place", "expected"),
    [
        ("#", "#", ROOT),
        ("http://x/y", "#", ROOT),
        ("http://x/y#/anyOf/1", "#/anyOf/1", {"const": 2}),
        ("#/$defs/a~1b", "#/$defs/a~1b", {"type": "string"}),
        ("#/$defs/c~0d", "#/$defs/c~0d", True),
        ("#/%24defs/a~1b", "#/$defs/a~1b", {"type": "string"}),
        ("#there", "#/$defs/e/items", {"$anchor": "there"}),
    ],
)
def test_references(reference: str, place: str, expected: Any) -> None:
    assert Resolver(ROOT).resolve(reference) == (place, expected)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("http://z", "only references inside the schema"),
        ("http://x/yz", "only references inside the schema"),
        ("#nowhere", "does not exist"),
        ("#/$defs/f", "does not exist"),
        ("#/anyOf/2", "does not exist"),
        ("#/anyOf/-1", "does not exist"),
        ("#/required", "is not a schema"),
    ],
)
def test_broken_references(reference: str, reason: str) -> None:
    with pytest.raises(BrokenReferenceError, match=reason):
        Resolver(ROOT).resolve(reference)


def test_parts_and_their_replacement() -> None:
    schema = {
        "properties": {"a/b": {"type": "null"}},
        "allOf": [True],
        "items": {"enum": [{"items": 1}]},
        "not": {"const": 1},
        "title": "t",
    }
    assert list(parts(schema)) == [
        ("/properties/a~1b", {"type": "null"}),
        ("/allOf/0", True),
        ("/items", {"enum": [{"items": 1}]}),
    ]
    changed = {"properties": {"a/b": 0}, "allOf": [0], "items": 0, "not": {"const": 1}, "title": "t"}
    assert mapped(schema, lambda _: 0) == changed
    assert mapped({"items": [1, 2], "additionalItems": 3}, lambda _: 0) == {"items": [0, 0], "additionalItems": 0}


@pytest.mark.parametrize(
    ("value", "kind"),
    [({}, "object"), ([], "array"), ("", "string"), (True, "boolean"), (None, "null"), (1, "number"), (1.5, "number")],
)
def test_kinds(value: Any, kind: str) -> None:
    assert kind_of(value) == kind
