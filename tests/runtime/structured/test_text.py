"""Texts as users meet them: whitespace, recursion, other scripts, order of keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from grammars import accepts, write

from inferir.runtime.structured import Grammar

Compile = Callable[..., Grammar]
Reason = Callable[..., str]
FINITE = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}, "c": {"type": "null"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("prefer", [b"", b"\n ", b" ", b"\t\r"])
def test_whitespace_is_bounded(compile_: Compile, prefer: bytes) -> None:
    """Even a model that always prefers blanks finishes within 100 tokens."""
    grammar = compile_("json_schema", FINITE)
    for seed in range(50):
        text = write(grammar, seed, 100, prefer)
        assert text is not None
        jsonschema.validate(json.loads(text), FINITE)
        assert not re.search(r"\s{6}", text)
        assert text.rstrip() == text


def test_whitespace_is_bounded_in_free_values(compile_: Compile) -> None:
    for grammar in (compile_("json_object"), compile_("json_schema", {"properties": {"a": {}}, "required": ["a"]})):
        assert accepts(grammar, '{"a": {"b":  [1,\n    2]}}')
        assert not accepts(grammar, '{"a": {"b":      1}}')
        assert not accepts(grammar, '   {"a": 1}')


@pytest.mark.parametrize("ref", ["#/$defs/node", "#"])
def test_recursive_schemas(compile_: Compile, ref: str) -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": ref}]}},
        "required": ["v", "next"],
    }
    schema = {**node, "$defs": {"node": node}}
    grammar = compile_("json_schema", schema)
    assert accepts(grammar, '{"v": 1, "next": {"v": 2, "next": {"v": 3, "next": null}}}')
    assert not accepts(grammar, '{"v": 1, "next": {"v": 2}}')
    texts = [t for seed in range(20) if (t := write(grammar, seed)) is not None]
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


def test_references_into_lists(compile_: Compile) -> None:
    grammar = compile_(
        "json_schema", {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]}
    )
    assert accepts(grammar, "[true,false]")
    assert not accepts(grammar, "[1]")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": "http://example.com/schema.json"},
        {"properties": {"a": {"$ref": "other.json#/a"}}},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#/$defs/a/type", "$defs": {"a": {"type": "null"}}},
        {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/9"}]},
    ],
)
def test_references_that_lead_nowhere(reason: Reason, schema: Any) -> None:
    assert "refers to" in reason("json_schema", schema) or "no text" in reason("json_schema", schema)


def test_other_scripts_are_exact(compile_: Compile) -> None:
    values = ["在线", "Sjöfart", "😀", 'a"b\\c']
    grammar = compile_("json_schema", {"enum": values})
    found = {write(grammar, seed) for seed in range(40)}
    assert found == {json.dumps(v, ensure_ascii=False) for v in values}
    digits = compile_("regex", "[٠-٩]{3}")
    for seed in range(20):
        text = write(digits, seed)
        assert text is not None
        assert len(text) == 3
        assert all("٠" <= c <= "٩" for c in text)
    named = compile_("json_schema", {"properties": {"größe": {"type": "integer"}}, "required": ["größe"]})
    assert accepts(named, '{"größe":5}')
    assert not accepts(named, '{"gr\\u00f6\\u00dfe":5}')
    chosen = compile_("choice", ['q"\\\n\t\u007f', "é]|[", "😀"])
    assert {write(chosen, seed) for seed in range(30)} == {'q"\\\n\t\u007f', "é]|[", "😀"}


def test_order_of_keys_and_values_that_are_no_strings(compile_: Compile) -> None:
    schema = {
        "type": "object",
        "properties": {
            "z": {"type": "integer"},
            "a": {"type": "string"},
            "m": {"enum": [1, None, "x", True]},
            "k": {"const": 3.5},
        },
        "required": ["z", "a"],
        "additionalProperties": False,
    }
    grammar = compile_("json_schema", schema)
    shapes = set()
    for seed in range(50):
        text = write(grammar, seed, 1000)
        if text is None:
            continue
        value = json.loads(text)
        jsonschema.validate(value, schema)
        assert list(value) == [k for k in "zamk" if k in value]
        shapes.add(tuple(value))
    assert len(shapes) >= 3
    assert accepts(grammar, '{"z":1,"a":"","m":null,"k":3.5}')
    assert not accepts(grammar, '{"a":"","z":1}')
    assert not accepts(grammar, '{"z":1,"a":"","k":3.50}')
    assert not accepts(grammar, '{"z":1,"a":"","x":1}')
