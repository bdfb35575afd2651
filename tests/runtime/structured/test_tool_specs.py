"""Declared tools, the choice among them, and grammars that force a call."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from grammars import accepts, write
from whole_calls import parse_calls

from inferir.ir.errors import RequestError
from inferir.runtime.structured import GrammarCompiler, StructuredSpec
from inferir.runtime.structured.spec_fields import structured_spec
from inferir.runtime.structured.tool_specs import MAX_TOOLS, chosen_tools, forced_spec, parse_tools, text_or_calls
from inferir.runtime.structured.vocabulary import Vocabulary

SEARCH: dict[str, Any] = {
    "type": "object",
    "$defs": {"mode": {"enum": ["fast", "räumlich"]}},
    "properties": {"limit": {"type": "integer", "minimum": 1, "maximum": 9}, "mode": {"$ref": "#/$defs/mode"}},
    "required": ["limit", "mode"],
}
TREE: dict[str, Any] = {
    "properties": {"child": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
    "required": ["child"],
}


def declared(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = parse_tools([declared("search", SEARCH, description="Find."), declared("tree", TREE), declared("now")])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"search", "tree", "now"}),
        ({"type": "function", "function": {"name": "search"}}, {"search"}),
        ({"type": "function", "function": {"name": "tree"}}, {"tree"}),
        ({"type": "function", "function": {"name": "now"}}, {"now"}),
    ],
)
def test_a_forced_text_is_a_call_with_valid_arguments(compiler: GrammarCompiler, choice: Any, names: set[str]) -> None:
    tools = chosen_tools(TOOLS, choice)
    assert tools is not None
    grammar = compiler.compile(forced_spec(tools))
    schemas = {t.name: dict(t.parameters) for t in TOOLS}
    seen = set()
    for seed in range(40):
        text = write(grammar, seed, 600)
        if text is None:
            continue
        content, calls = parse_calls("json", frozenset(schemas), text)
        assert content == ""
        ((name, arguments),) = calls
        jsonschema.validate(json.loads(arguments), schemas[name])
        seen.add(name)
    assert seen == names


def test_choices_that_force_nothing() -> None:
    assert chosen_tools(TOOLS, None) is None
    assert chosen_tools(TOOLS, "none") is None
    assert chosen_tools(TOOLS, "auto") is None
    assert chosen_tools((), None) is None


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ((), "auto"),
        ((), "required"),
        (TOOLS, "any"),
        (TOOLS, 1),
        (TOOLS, {"type": "function"}),
        (TOOLS, {"type": "function", "function": {"name": "gone"}}),
    ],
)
def test_wrong_choices(tools: Any, choice: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chosen_tools(tools, choice)
    assert caught.value.field == "tool_choice"


@pytest.mark.parametrize(
    "value",
    [
        {},
        ["x"],
        [{"type": "retrieval"}],
        [declared("")],
        [declared("white space")],
        [declared("x" * 65)],
        [declared("a", [])],
        [declared("a", {"type": "string"})],
        [declared("a", description=1)],
        [declared("a"), declared("a")],
        [declared(f"t{i}") for i in range(MAX_TOOLS + 1)],
    ],
)
def test_wrong_tools(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_tools(value)
    assert caught.value.field == "tools"


def test_forced_arguments_with_an_unusable_schema_name_the_field() -> None:
    with pytest.raises(RequestError, match="uniqueItems") as caught:
        forced_spec(parse_tools([declared("a", {"properties": {"x": {"type": "array", "uniqueItems": True}}})]))
    assert caught.value.field == "tools"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}, "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredSpec("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            StructuredSpec("json_schema", {"type": "null"}),
        ),
        (
            {"structured_outputs": {"json": {"type": "null"}, "regex": None}},
            StructuredSpec("json_schema", '{"type": "null"}'),
        ),
        ({"structured_outputs": {"regex": "a+"}}, StructuredSpec("regex", "a+")),
        ({"structured_outputs": {"choice": ["a"]}}, StructuredSpec("choice", ("a",))),
        ({"structured_outputs": {"grammar": "root ::= [a]"}}, StructuredSpec("grammar", "root ::= [a]")),
        ({"structured_outputs": {"json_object": True}}, StructuredSpec("json_object")),
        ({"structured_outputs": {"json_object": False}}, None),
    ],
)
def test_request_fields(body: dict[str, Any], expected: StructuredSpec | None) -> None:
    found = structured_spec(body)
    assert found == expected
    if found is not None and expected is not None:
        assert found.digest == expected.digest


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_wrong_request_fields(body: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        structured_spec(body)
    assert caught.value.field == field


@pytest.mark.parametrize("special", [True, False], ids=["special tokens", "text"])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_text_of_a_schema_or_calls(special: bool, parallel: bool) -> None:
    """The tags of calls are special tokens if the tokenizer has them, and text otherwise."""
    tokens = [bytes([i]) for i in range(256)] + [b""] * 3
    marks = {257: "<tool_call>", 258: "</tool_call>"} if special else {}
    compiler = GrammarCompiler(Vocabulary(tokens, [256], marks))
    text = StructuredSpec("json_schema", {"type": "array", "items": {"type": "integer"}}, "response_format")
    try:
        grammar = compiler.compile(text_or_calls(text, TOOLS[:1], "hermes", parallel=parallel))
    finally:
        compiler.close()
    opening, closing = ([257], [258]) if special else (list(b"<tool_call>"), list(b"</tool_call>"))
    body = b'\n{"name": "search", "arguments": {"limit": 3, "mode": "fast"}}\n'
    call = [*opening, *body, *closing]
    for answer, fits in (
        (list(b"[1, 2]"), True),
        (call, True),
        ([*call, *b"\n", *call], parallel),
        ([*call, *b"[1]"], False),
        (list(b'{"name": "search", "arguments": {"limit": 3, "mode": "fast"}}'), False),
        ([*opening, *body.replace(b"search", b"tree"), *closing], False),
        ([*opening, *body.replace(b"3", b"30"), *closing], False),
    ):
        state = grammar.new_state()
        assert (all(state.accept(t) for t in answer) and state.end()) == fits, answer
    content, calls = parse_calls("hermes", frozenset({"search"}), f"<tool_call>{body.decode()}</tool_call>")
    assert (content, [name for name, _ in calls]) == ("", ["search"])


def test_a_text_of_a_schema_or_calls_of_the_json_style(compiler: GrammarCompiler) -> None:
    text = StructuredSpec("json_schema", {"type": "array", "items": {"type": "integer"}})
    grammar = compiler.compile(text_or_calls(text, TOOLS, "json", parallel=True))
    assert accepts(grammar, "[1]")
    assert accepts(grammar, '{"name": "now", "arguments": {}}')
    assert not accepts(grammar, '{"name": "then", "arguments": {}}')
