"""Every text that a schema's grammar lets through validates against the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from grammars import accepts, write

from inferir.runtime.structured import Grammar
from inferir.runtime.structured.schema import MAX_DEPTH, check_schema, explicit_schema, patterns

Compile = Callable[..., Grammar]
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]},
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "items": {"type": "null"}, "minItems": 2},
    {"type": "array", "maxItems": 2},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": r"^[^\"\\]{2}\d[a-z]*$"},
    {"type": "string", "format": "date"},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    {"minimum": 3},
    {"minLength": 1, "maxLength": 2},
    {"type": ["string", "null"], "maxLength": 2},
    {"enum": [1, None, "x", True, [1, {"a": "é"}]]},
    {"type": "string", "enum": ["a", 1, "b"]},
    {"const": {"b": 1, "a": [1, "é"]}},
    {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"k": {"type": "null"}}, "required": ["k"]}]},
    {"oneOf": [{"const": 1}, {"const": "1"}]},
    {"allOf": [{"type": "boolean"}], "description": "one part"},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "other"]},
    {"type": "object", "required": ["r"], "additionalProperties": {"type": "integer"}},
    {"$defs": {"n": {"type": "integer", "minimum": 1}}, "type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
    {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}, "minProperties": 1},
    {"prefixItems": [{"type": "null"}], "unevaluatedItems": {"type": "integer"}, "maxItems": 3},
    {"type": "number", "minimum": -1e-7, "maximum": 1e-7},
    {"type": ["integer", "string"], "minimum": 3, "maxLength": 2},
    {"enum": [1.0, 1e5, -0.0, "\u0001\n\u2028"]},
    {"properties": {'a"b\n': {"const": 1}, "": {"const": 2}}, "required": ['a"b\n', ""]},
    {"type": "string", "format": "uuid"},
    {"definitions": {"b": {"type": "boolean"}}, "properties": {"x": {"$ref": "#/definitions/b"}}, "required": ["x"]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:60])
def test_random_texts_validate(compile_: Compile, schema: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    grammar = compile_("json_schema", schema)
    ended = 0
    for seed in range(40):
        text = write(grammar, seed)
        if text is not None:
            validator.validate(json.loads(text))
            ended += 1
    assert ended >= 10


def test_any_object(compile_: Compile) -> None:
    grammar = compile_("json_object")
    texts = [t for seed in range(20) if (t := write(grammar, seed, 800)) is not None]
    assert texts
    assert all(isinstance(json.loads(t), dict) for t in texts)
    for text in ('{"a": [1, {"b": null}], "é": "x"}', "{}"):
        assert accepts(grammar, text)
    for text in ("[]", '{"a"}', '{"a":1'):
        assert not accepts(grammar, text)


def test_schema_text_and_schema_object_are_the_same(compile_: Compile) -> None:
    assert compile_("json_schema", '{"type": "null"}') is compile_("json_schema", {"type": "null"})


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"not": {}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "number", "multipleOf": 2}, "multipleOf"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "array", "contains": {}}, "contains"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf with more than one"),
        ({"anyOf": [{}], "properties": {}}, "combines anyOf with properties"),
        ({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {}}}, "combines $ref with minimum"),
        ({"enum": [1], "const": 1}, "combines enum with const"),
        ({"enum": []}, "enum"),
        ({"enum": ["a"], "type": "integer"}, "is of its type"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern with format or a length"),
        ({"type": "string", "pattern": 'a"'}, "quote"),
        ({"type": "string", "pattern": "a\\\\b"}, "quote"),
        ({"type": "string", "pattern": "a\\nb"}, "quote"),
        ({"type": "string", "pattern": "\\u0022"}, "quote"),
        ({"type": "string", "pattern": "[\"']"}, "quote"),
        ({"minItems": 3, "maxItems": 2}, "larger"),
        ({"maxLength": -1}, "0 or more"),
        ({"maxLength": 1.5}, "0 or more"),
        ({"minimum": "1"}, "number"),
        ({"properties": []}, "object"),
        ({"properties": {"a": 1}}, "#/properties/a"),
        ({"required": "a"}, "required"),
        ({"required": ["a"], "additionalProperties": False}, "does not allow"),
        ({"type": []}, "empty"),
        ({"type": ["string", "text"]}, "'text'"),
        ({"anyOf": []}, "anyOf"),
        ({"$ref": 1}, "$ref"),
        ({"properties": {f"p{i}": {} for i in range(501)}}, "properties"),
        (False, "nothing"),
        ({"patternProperties": {".*": {"type": "integer"}, "a": {"type": "null"}}}, "more than one pattern"),
        ({"patternProperties": {"a": {}}, "properties": {"b": {}}}, "other properties"),
        ({"type": "integer", "minimum": 4, "maximum": 3}, "minimum"),
        ({"properties": {"a": False}}, "false"),
    ],
)
def test_what_could_not_be_honoured_is_refused(reason: Callable[..., str], schema: Any, part: str) -> None:
    assert part in reason("json_schema", schema)


def test_deep_schemas_are_refused_without_recursion_errors() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(MAX_DEPTH):
        schema = {"type": "array", "items": schema}
    assert check_schema(schema) is None
    assert "levels" in str(check_schema({"type": "array", "items": schema}))


def test_explicit_schema_keeps_order_and_names_like_keywords() -> None:
    schema = {"properties": {"items": {"maxLength": 1}, "enum": {"type": "array"}}, "required": ["x"]}
    made = explicit_schema(schema)
    assert list(made["properties"]) == ["items", "enum", "x"]
    assert made["properties"]["items"] == {"maxLength": 1, "type": "string"}
    assert made["properties"]["enum"]["items"] is True
    assert "x" not in schema["properties"]


def test_patterns_are_found_where_they_are_patterns() -> None:
    schema = {
        "properties": {"pattern": {"pattern": "a"}},
        "patternProperties": {"b": {"items": {"pattern": "c"}}},
        "enum": [{"pattern": "no"}],
        "anyOf": [{"pattern": "d"}],
    }
    assert sorted(patterns(schema)) == ["a", "b", "c", "d"]
