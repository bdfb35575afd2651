"""Checked schemas in the words of the core."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.runtime.structured.schema_form import core_schema, unwritable

LISTED = {"properties": {"a": False, "b": False}, "minProperties": 1}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        ({"title": "x", "unknown": 1, "type": "null"}, {"type": "null"}),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, {"allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}]}),
        ({"minLength": 2.0, "maxLength": 1 << 40}, {"minLength": 2}),
        ({"format": "email"}, {"format": "email"}),
        ({"format": "nothing"}, {}),
        ({"$ref": "#/$defs/é", "$defs": {"é": {"const": 1}}}, {"$ref": "#/$defs/d0", "$defs": {"d0": {"const": 1}}}),
        ({"$ref": "#"}, {"$ref": "#/$defs/d0", "$defs": {"d0": {"$ref": "#/$defs/d0"}}}),
        ({"unevaluatedItems": False}, {"items": False}),
        (
            {"properties": {"a": {}, "b": {}}, "minProperties": 1},
            {
                "properties": {"a": {}, "b": {}},
                "allOf": [{"anyOf": [{"required": ["a"]}, {"required": ["b"]}, LISTED]}],
            },
        ),
    ],
)
def test_forms(schema: Any, expected: dict[str, Any]) -> None:
    found = core_schema(schema)
    options = found.pop("x-guidance")
    assert found == expected
    assert options["whitespace_pattern"] == "[ \\t\\n\\r]{1,5}"


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [({"properties": {"a": {}}}, True), ({"properties": {"a": {}}, "additionalProperties": False}, False), ({}, False)],
)
def test_other_spellings_of_keys_are_kept_out_where_others_are_allowed(schema: Any, is_open: bool) -> None:
    assert ("json_allowed_escapes" in core_schema(schema)["x-guidance"]) is is_open


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"a\x01": {}}}, "a\x01"),
        ({"properties": {"a": {"enum": [[{"b": "\x7f"}]]}}}, "\x7f"),
        ({"properties": {"a": {"const": "\n\t\b"}}}, None),
        ({"properties": {"a\x01": {}}, "additionalProperties": False}, None),
    ],
)
def test_what_has_no_text(schema: Any, expected: str | None) -> None:
    assert unwritable(schema) == expected


def test_deep_schemas_are_cut_into_definitions() -> None:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(30):
        schema = {"items": schema}
    found = core_schema(schema)
    assert len(found["$defs"]) == 2
