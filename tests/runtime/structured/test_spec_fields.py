"""Closed objects, by hand and against jsonschema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from inferir.ir.errors import RequestError
from inferir.runtime.structured.spec_fields import closed, one_of, structured_spec

NUMBER: dict[str, Any] = {"type": "number"}
POINT = {"type": "object", "properties": {"x": NUMBER}}
SHUT = {**POINT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (POINT, SHUT),
        ({"properties": {"p": POINT}}, {"properties": {"p": SHUT}, "additionalProperties": False}),
        ({"type": "array", "items": POINT}, {"type": "array", "items": SHUT}),
        ({"anyOf": [POINT, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, {"$ref": "#/$defs/p", "$defs": {"p": SHUT}}),
        ({"allOf": [POINT]}, {"allOf": [SHUT]}),
        ({**POINT, "additionalProperties": NUMBER}, {**POINT, "additionalProperties": NUMBER}),
        ({**POINT, "patternProperties": {"^y": NUMBER}}, {**POINT, "patternProperties": {"^y": NUMBER}}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "additionalProperties": POINT}, {"type": "object", "additionalProperties": SHUT}),
        ({"enum": [POINT]}, {"enum": [POINT]}),
        (True, True),
    ],
)
def test_objects_that_name_properties_are_closed(schema: Any, made: Any) -> None:
    before = json.dumps(schema)
    assert closed(schema) == made
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [POINT, {"properties": {"y": NUMBER}}]},
        {**POINT, "allOf": [{"properties": {"y": NUMBER}}]},
        {**POINT, "anyOf": [{"properties": {"y": NUMBER}}, {"properties": {"z": NUMBER}}]},
        {"properties": {"x": NUMBER}, "$ref": "#/$defs/y", "$defs": {"y": {"properties": {"y": NUMBER}}}},
        {
            "allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}],
            "$defs": {"x": POINT, "y": {"properties": {"y": NUMBER}}},
        },
    ],
)
def test_what_describes_an_object_together_stays_open(schema: dict[str, Any]) -> None:
    made = closed(schema)
    assert made == schema
    jsonschema.validate({"x": 1, "y": 2}, made)


def test_a_recursive_schema_is_closed_once() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    made = closed(node)
    jsonschema.validate({"next": {"next": None}}, made)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"next": {"more": 1}}, made)


def test_fields_that_close() -> None:
    def value(body: dict[str, Any]) -> Any:
        spec = structured_spec(body)
        assert spec is not None
        return json.loads(spec.value)

    described = {"name": "p", "schema": POINT}
    assert value({"response_format": {"type": "json_schema", "json_schema": described}}) == POINT
    for strict, made in ((True, SHUT), (False, POINT), (None, POINT)):
        body = {"response_format": {"type": "json_schema", "json_schema": {**described, "strict": strict}}}
        assert value(body) == made
    for schema in (POINT, json.dumps(POINT)):
        assert value({"structured_outputs": {"json": schema, "disable_additional_properties": True}}) == SHUT
        assert value({"structured_outputs": {"json": schema, "disable_additional_properties": False}}) == POINT


@pytest.mark.parametrize(
    "value",
    [
        {"regex": "a", "disable_additional_properties": True},
        {"disable_additional_properties": True},
        {"json": POINT, "disable_additional_properties": 1},
    ],
)
def test_it_goes_with_a_schema_only(value: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="disable_additional_properties"):
        one_of(value, "structured_outputs")
