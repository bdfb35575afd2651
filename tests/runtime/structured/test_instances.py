"""Schemas and instances drawn at random: what a grammar lets through validates, and what validates gets through.

`jsonschema` is the reference. Instances are written as the page says that texts are: listed keys first, in the order of
the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from grammars import accepts, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferir.ir.errors import RequestError
from inferir.runtime.structured import Grammar, GrammarCompiler, StructuredSpec

Compile = Callable[..., Grammar]
NAMES = ["a", "b", "é", "x y"]
TEXTS = st.sampled_from(["", "a", "ab", "abc", "é😀", "1", 'q"\\', "\n"])
NUMBERS = st.one_of(st.integers(-20, 20), st.sampled_from([0.5, -1.25, 2.0, 1e3, 0.1]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    LEAVES,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(NAMES), v, max_size=3),
    max_leaves=6,
)


def with_some(base: dict[str, Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=more).map(lambda extra: {**base, **extra})


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    count = st.integers(0, 3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    kinds = st.sampled_from([{"type": "object"}, {}])
    return st.one_of(
        kinds.flatmap(
            lambda base: with_some(
                base,
                properties=named,
                required=st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
                additionalProperties=inner,
                minProperties=st.integers(0, 2),
            )
        ),
        with_some({"type": "array"}, items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=count),
        with_some({}, maxItems=count, items=inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"oneOf": [a, b]}, inner, inner),
    )


SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.sampled_from(["null", "boolean", "string", "number", "integer"]).map(lambda t: {"type": t}),
        st.builds(lambda v: {"const": v}, VALUES),
        st.builds(lambda v: {"enum": v}, st.lists(VALUES, min_size=1, max_size=3)),
        with_some({"type": "string"}, minLength=st.integers(0, 2), maxLength=st.integers(2, 4)),
        with_some({}, pattern=st.sampled_from(["a", "^a", "b$", "^[a-z]*$", "a.", r"\d"]), minLength=st.integers(0, 2)),
        with_some({"type": "integer"}, minimum=NUMBERS, maximum=NUMBERS, multipleOf=st.sampled_from([1, 2, 3, 0.5])),
        with_some({}, exclusiveMinimum=NUMBERS, maximum=NUMBERS),
        with_some({"type": "number"}, minimum=NUMBERS, multipleOf=st.sampled_from([0.5, 0.25, 2])),
    ),
    schemas,
    max_leaves=5,
)


def compiled(compiler: GrammarCompiler, schema: Any) -> Grammar | None:
    try:
        return compiler.compile(StructuredSpec("json_schema", schema))
    except RequestError:
        return None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=4, max_size=4))
def test_any_schema(compiler: GrammarCompiler, schema: Any, values: list[Any]) -> None:
    grammar = compiled(compiler, schema)
    if grammar is None:
        return
    validator = jsonschema.Draft202012Validator(schema)
    for seed in range(4):
        text = write(grammar, seed, 200)
        if text is not None and "Infinity" not in json.dumps(json.loads(text)):  # the reference computes with floats
            assert validator.is_valid(json.loads(text)), text
    for value in values:
        text = json.dumps(value, ensure_ascii=False)
        if accepts(grammar, text):
            assert validator.is_valid(value), text


OPEN: list[tuple[Any, list[Any]]] = [
    ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1}, {"a": 1, "z": [None]}, {"z": 1}, 3, "x", None, []]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 3}, [[1, "a", None], [1, 2, 3, {}]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]}, [[], [1], [1, None], [1, None, "x"]]),
    ({"required": ["b"], "properties": {"a": {}}}, [{"a": 1, "b": 2}, {"b": 2}, {"b": 2, "c": 3}, 7]),
    ({"type": "string", "pattern": "b"}, ["b", "abc", "xbb\n", 'é"b']),
    ({"type": "string", "pattern": "^a|b$"}, ["a", "ax", "xb", "ab"]),
    ({"type": "string", "maxLength": 4}, ['a"b', "a\\b", "a\nb", "é😀€x", "\t\b\f\r"]),
    ({"multipleOf": 0.25, "type": "number"}, [0.25, 7, -1.75, 100]),
    ({"patternProperties": {"^x": {"type": "integer"}}}, [{"xa": 1, "y": "z"}, {}, {"y": None}]),
    ({"type": "object", "properties": {"a": {"const": 1}}, "minProperties": 1}, [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}]),
    ({"properties": {"k": {"type": "null"}}, "allOf": [{"required": ["k"]}, {"maxProperties": 1}]}, [{"k": None}]),
    ({"$ref": "#t", "$defs": {"x": {"$anchor": "t", "type": ["null", "integer"]}}}, [None, 5]),
    ({"$id": "http://a/b", "$ref": "http://a/b#/$defs/x~1y%20z", "$defs": {"x/y z": {"const": [1]}}}, [[1]]),
    ({"oneOf": [{"type": "string"}, {"type": "null"}], "title": "t", "x-guidance": {"lenient": 1}}, ["a", None]),
    ({"type": "string", "format": "password"}, ["anything"]),
    ({"enum": ["\u0001\n\u2028", 1e5, -0.5, {"a": [None]}]}, [100000, -0.5, {"a": [None]}]),
    ({"unevaluatedProperties": {"type": "null"}, "properties": {"a": {}}}, [{"a": 1, "b": None}, {}]),
    ({"const": 1.0}, [1]),
    ({"minLength": 2.0, "type": "string"}, ["ab", "é😀"]),
]


@pytest.mark.parametrize(("schema", "values"), OPEN, ids=lambda v: json.dumps(v)[:50])
def test_what_a_schema_does_not_exclude_is_allowed(compile_: Compile, schema: Any, values: list[Any]) -> None:
    validator = jsonschema.Draft202012Validator({k: v for k, v in schema.items() if k != "$id"})
    grammar = compile_("json_schema", schema)
    for value in values:
        if "$id" not in schema:
            assert validator.is_valid(value)
        assert accepts(grammar, json.dumps(value, ensure_ascii=False)), value


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"properties": {"a": {"type": "integer"}}}, ['{"a":1,"\\u0061":"x"}', '{"a":"x"}', '{"b":1,"a":"x"}']),
        (
            {"type": "string", "format": "date"},
            ['"2023-02-29"', '"2024-02-30"', '"1900-02-29"', '"0084-02-30"', '"2024-13-01"'],
        ),
        (
            {"type": "string", "format": "date-time"},
            ['"2023-02-29T00:00:00Z"', '"2024-02-29T24:00:00Z"', '"2024-02-29"'],
        ),
        ({"type": "string", "maxLength": 2}, ['"abc"', '"\\ud800"', '"\x01"']),
        ({"oneOf": [{"const": 1}, {"const": "1"}]}, ["2", '"2"', "1.5"]),
        ({"type": "object", "additionalProperties": False}, ['{"a":1}']),
        ({"type": "array", "prefixItems": [{}], "items": False}, ["[1,2]"]),
        ({"type": "object", "minProperties": 1, "properties": {"a": {}}}, ["{}"]),
        ({"multipleOf": 3, "type": "integer"}, ["4", "-1"]),
    ],
)
def test_what_a_schema_excludes_is_not_allowed(compile_: Compile, schema: Any, texts: list[str]) -> None:
    grammar = compile_("json_schema", schema)
    for text in texts:
        assert not accepts(grammar, text), text


def test_leap_days(compile_: Compile) -> None:
    grammar = compile_("json_schema", {"type": "string", "format": "date"})
    for day in ("2024-02-29", "2000-02-29", "0004-02-29", "2023-02-28", "9999-12-31"):
        assert accepts(grammar, f'"{day}"')
    moment = compile_("json_schema", {"type": "string", "format": "date-time", "pattern": "Z$", "minLength": 20})
    assert accepts(moment, '"2024-02-29T23:59:60.5Z"')
    assert not accepts(moment, '"2024-02-29T23:59:59+00:00"')
    for digits in (1, 9, 10):  # a model that loves zeros comes to an end
        assert accepts(moment, f'"2024-02-29T23:59:59.{"0" * digits}Z"') is (digits < 10)


@pytest.mark.parametrize("value", ["\ud800", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"])
def test_no_text_that_cannot_be_decoded(compile_: Compile, value: str | bytes) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value)[1:-1].encode()
    for kind, schema, head in (
        ("json_object", None, b'{"'),
        ("json_object", None, b'{"a":"'),
        ("json_schema", {"type": "string"}, b'"'),
        ("json_schema", {"properties": {"a": {}}}, b'{"'),
    ):
        state = compile_(kind, schema).new_state()
        assert all(state.accept(b) for b in head)
        assert not all(state.accept(b) for b in data)


def test_repeated_keys_are_those_that_the_schema_does_not_list(compile_: Compile) -> None:
    assert accepts(compile_("json_object"), '{"a":1,"a":2}')
    named = compile_("json_schema", {"type": "object", "properties": {"a": {}}})
    assert not accepts(named, '{"a":1,"a":2}')
    assert accepts(named, '{"a":1,"b":2,"b":3}')
