"""Schemas as pydantic, zod and the like write them: accepted, and with the texts that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from grammars import accepts, write

from inferir.runtime.structured import Grammar, StructuredSpec
from inferir.runtime.structured.spelling import plain

Compile = Callable[..., Grammar]
TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def tagged(tag: str, **properties: Any) -> dict[str, Any]:
    """A model whose tag has a default, so that it is not required."""
    return {
        "type": "object",
        "properties": {"kind": {"const": tag, "default": tag, "type": "string"}, **properties},
        "required": list(properties),
    }


PETS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pets": {
            "type": "array",
            "items": {
                "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            },
        }
    },
    "required": ["pets"],
    "$defs": {"Cat": tagged("cat", lives={"type": "integer"}), "Dog": tagged("dog", good={"type": "boolean"})},
}
NESTED = {
    "discriminator": {"propertyName": "kind"},
    "oneOf": [PETS["properties"]["pets"]["items"], tagged("lizard", rocks=NUMBER)],
    "$defs": PETS["$defs"],
}
COLOR = {"enum": ["red", "green"], "title": "Color", "type": "string"}


def names(of: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "propertyNames": of, "additionalProperties": NUMBER, **more}


CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (
        PETS,
        [{"pets": [{"kind": "cat", "lives": 9}, {"kind": "dog", "good": True, "x": 1}]}],
        [{"pets": [{"lives": 9}]}],
    ),
    (NESTED, [{"kind": "dog", "good": True}, {"kind": "lizard", "rocks": 1}], [{"kind": "dog", "rocks": 1}]),
    (names(TEXT), [{"a": 1, "": 2}, {}], [{"a": "b"}]),
    (names(True), [{"a": 1}], [{"a": None}]),
    (names({"enum": ["a", "b"]}), [{"a": 1}, {"b": 1}, {}, {"a": 1, "b": 2}], [{"c": 1}, {"a": ""}]),
    (names({"const": "a"}, required=["a"]), [{"a": 1}], [{"b": 1}, {}]),
    (names({"$ref": "#/$defs/C"}, **{"$defs": {"C": COLOR}}), [{"red": 1, "green": 2}], [{"blue": 1}]),
    (names({"enum": ["b", "a"]}, properties={"a": TEXT, "z": TEXT}), [{"a": "x", "b": 1}, {}], [{"z": "x"}, {"a": 1}]),
    (names({"enum": ["a"]}, properties={"b": {}}, additionalProperties=False), [{}], [{"a": 1}, {"b": 1}]),
    (names({"type": "string", "pattern": "^[a-z]+$"}), [{"ab": 1}], [{"A": 1}, {"a": "b"}]),
    (names({"minLength": 1, "maxLength": 2}), [{"é😀": 1, "\n": 2}], [{"": 1}, {"abc": 1}]),
    ({"anyOf": [{"not": {}}, TEXT]}, ["a"], [1]),
    ({"type": "object", "properties": {"never": {"not": {}}}}, [{}, {"b": 1}], [{"never": 1}]),
    ({"oneOf": [{"const": i, "title": str(i)} for i in range(600)]}, [0, 599], [600]),
    ({"oneOf": [{**tagged(str(i)), "required": ["kind"]} for i in range(200)]}, [{"kind": "199"}], [{}, {"kind": "x"}]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), CASES, ids=lambda v: json.dumps(v)[:60])
def test_other_spellings(compile_: Compile, schema: Any, right: list[Any], wrong: list[Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    grammar = compile_("json_schema", schema)
    for value in right:
        assert validator.is_valid(value)
        assert accepts(grammar, json.dumps(value, ensure_ascii=False)), value
    for value in wrong:
        assert not accepts(grammar, json.dumps(value, ensure_ascii=False)), value
    ended = [t for seed in range(10) if (t := write(grammar, seed, 400)) is not None]
    assert all(validator.is_valid(json.loads(text)) for text in ended)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"items": [TEXT, NUMBER], "minItems": 2, "maxItems": 2}, [["a", 1]], [["a"], ["a", 1, 2], [1, "a"]]),
        ({"items": [TEXT], "additionalItems": NUMBER}, [["a", 1, 2], []], [["a", "b"]]),
        ({"items": [TEXT], "additionalItems": False}, [["a"], []], [["a", "b"]]),
        ({"items": []}, [["a", 1]], [3]),
    ],
)
def test_lists_of_items_are_those_of_older_drafts(
    compile_: Compile, schema: Any, right: list[Any], wrong: list[Any]
) -> None:
    schema = {"type": "array", **schema}
    validator = jsonschema.Draft7Validator(schema)
    grammar = compile_("json_schema", schema)
    for value in right + wrong:
        assert accepts(grammar, json.dumps(value)) is validator.is_valid(value) is (value in right)


def test_formats_that_no_text_has_together(compile_: Compile) -> None:
    grammar = compile_("json_schema", {"oneOf": [{"format": f, "type": "string"} for f in ("date", "date-time")]})
    assert [accepts(grammar, f'"{t}"') for t in ("2024-02-29", "2024-02-29T00:00:00Z", "2024")] == [True, True, False]


def test_words_in_data_are_not_keywords() -> None:
    schema = {
        "properties": {"not": {"const": {"not": {}}}, "items": {"enum": [{"propertyNames": {}}]}},
        "default": {"items": []},
    }
    assert plain(schema, json.dumps(schema)) == schema
    assert json.loads(StructuredSpec("json_schema", schema).value) == schema
