"""Every text that a schema's grammar lets through validates against the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from grammars import accepts, write

from inferir.runtime.structured import Grammar
from inferir.runtime.structured.json_schema import MAX_DEPTH, check_schema
from inferir.runtime.structured.schema_form import core_schema

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
    {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]},
    {"$ref": "#/$defs/a", "minimum": 1, "maximum": 9, "$defs": {"a": {"type": "integer"}}},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "null"}, "b": {"const": 1}}},
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": '^a[\\n"]?b$'},
    {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 100},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 3},
    {"patternProperties": {"^a": {"type": "null"}, "^b": {"const": 1}}, "additionalProperties": False},
    {"patternProperties": {"^a": {"type": "null"}}, "properties": {"b": {"const": 1}}, "required": ["b"]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]},
    {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "exclusiveMinimum": 3, "maximum": 20}]},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}, "minProperties": 1},
    {
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
        "minProperties": 1,
        "additionalProperties": False,
    },
    {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 2, "maxItems": 3},
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
        ({"not": {"type": "string"}}, "not"),
        ({"not": {}}, "nothing"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "array", "contains": {}}, "contains"),
        ({"propertyNames": {"format": "uuid"}}, "propertyNames"),
        ({"propertyNames": {"pattern": "a"}, "properties": {"a": {}}}, "propertyNames"),
        ({"propertyNames": {"pattern": "a", "minLength": 3}}, "propertyNames"),
        ({"propertyNames": {"$ref": "#/$defs/a"}}, "propertyNames"),
        ({"propertyNames": {"enum": ["a"]}, "required": ["b"]}, "does not allow"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"items": [{"type": "integer"}, 1]}, "#/prefixItems/1"),
        ({"items": {}, "additionalItems": False}, "additionalItems"),
        ({"oneOf": [{"$ref": "#/x"}, {"type": "object", "required": ["a"]}], "x": {"required": 5}}, "required of #/x"),
        ({"oneOf": [{"properties": {"k": {}}}, {"type": "object"}], "discriminator": {"propertyName": "k"}}, "oneOf"),
        ({"properties": {"a": {}}, "maxProperties": 2}, "maxProperties"),
        ({"allOf": [{"properties": {"a": {}}}, {"maxProperties": 2}]}, "maxProperties"),
        ({"required": [f"p{i}" for i in range(501)]}, "501"),
        ({"enum": [[[i]] for i in range(10_000)]}, "parts"),
        ({"properties": {"a": {"$id": "b"}}}, "$id"),
        ({"unevaluatedProperties": False, "anyOf": [{}]}, "unevaluatedProperties with anyOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"type": "string"}, {"enum": ["a", 1]}]}, "oneOf"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "oneOf"),
        ({"type": "integer", "multipleOf": 0}, "larger than 0"),
        ({"type": "integer", "multipleOf": 1_000_003}, "common multiple"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "common multiple"),
        ({"const": 2**53 + 1}, "precision"),
        ({"enum": [[{"a": 10**400}]]}, "precision"),
        ({"minimum": 2**60 + 1}, "precision"),
        ({"enum": []}, "enum"),
        ({"enum": ["a"], "type": "integer"}, "is of its type"),
        ({"type": "string", "format": "uri-reference"}, "uri-reference"),
        ({"type": "string", "format": "regex"}, "'regex'"),
        ({"type": "string", "pattern": "a++"}, "a++"),
        ({"type": "string", "pattern": "a\\"}, "backslash"),
        ({"properties": {"p": {"type": "string", "pattern": "(?=a)"}}}, "#/properties/p cannot be used: look-ahead"),
        ({"type": "string", "pattern": "a\\b"}, "\\b"),
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
        ({"patternProperties": {f"^p{i}$": {} for i in range(33)}}, "patternProperties"),
        (
            {"properties": {f"p{i}": {} for i in range(65)}, "maxProperties": 3, "additionalProperties": False},
            "counts properties",
        ),
        (False, "nothing"),
        ({"patternProperties": {".*": {"type": "integer"}, "a": {"type": "null"}}}, "not disjoint"),
        ({"patternProperties": {"x": {"type": "integer"}}, "minProperties": 2}, "several keys"),
        ({"type": "integer", "minimum": 4, "maximum": 3}, "minimum"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "unsatisfiable"),
        ({"properties": {"a": {"const": "\u0001"}}}, "control character"),
        ({"$ref": "#/components/a", "components": {"a": {"not": {"const": 1}}}}, "not"),
    ],
)
def test_what_could_not_be_honoured_is_refused(reason: Callable[..., str], schema: Any, part: str) -> None:
    assert part in reason("json_schema", schema)


def test_deep_schemas_are_refused_without_recursion_errors(compile_: Compile) -> None:
    schema: Any = {"type": "integer"}
    for _ in range(MAX_DEPTH // 2):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}, "required": ["a"]}
    assert check_schema(schema) is None
    text = '{"a":[' * (MAX_DEPTH // 2) + "1" + "]}" * (MAX_DEPTH // 2)
    assert accepts(compile_("json_schema", schema), text)
    assert "levels" in str(check_schema({"type": "array", "items": schema}))


def test_the_form_for_the_core_keeps_order_and_names_like_keywords() -> None:
    schema = {
        "title": "not",
        "properties": {"items": {"maxLength": 1.0, "x-guidance": {}}, "enum": {"type": "array", "deprecated": True}},
        "required": ["x"],
        "x-guidance": {"lenient": True},
        "nullable": True,
    }
    made = core_schema(schema)
    assert made.pop("x-guidance") == {"whitespace_pattern": r"[ \t\n\r]{1,5}", "json_allowed_escapes": 'nrbtf\\"'}
    assert made == {"properties": {"items": {"maxLength": 1}, "enum": {"type": "array"}}, "required": ["x"]}
    assert list(made["properties"]) == ["items", "enum"]
