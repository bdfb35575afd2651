"""Tool calls through the official client: forced ones, and reading those that a model writes by itself."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from inferir.server.openai.tool_use import tool_use

USER = {"role": "user", "content": "add"}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in ("add", "sub")]
NAMED = {"type": "function", "function": {"name": "sub"}}


def ask(client: openai.OpenAI, **params: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "tiny", "messages": [USER], "tools": TOOLS, "max_tokens": 80, "seed": 1, **params}
    )


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_forced_calls(client: openai.OpenAI, choice: Any, reason: str) -> None:
    answer = ask(client, tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == reason
    assert answer.message.content is None
    assert call.function.name in (("sub",) if choice is NAMED else ("add", "sub"))
    assert json.loads(call.function.arguments)["a"] in (1, 2)
    deltas = [c.choices[0].delta for c in ask(client, tool_choice=choice, stream=True)]
    pieces = [t for d in deltas for t in d.tool_calls or []]
    assert pieces[0].function.name == call.function.name
    assert pieces[0].id
    assert "".join(p.function.arguments for p in pieces) == call.function.arguments


def test_text_that_is_no_call(client: openai.OpenAI) -> None:
    plain = ask(client, tools=openai.NOT_GIVEN, temperature=0, max_tokens=9).choices[0].message
    for choice in ("auto", "none"):
        message = ask(client, tool_choice=choice, temperature=0, max_tokens=9).choices[0].message
        assert message.content == plain.content
        assert not message.tool_calls


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
    ],
)
def test_refusals(client: openai.OpenAI, params: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as e:
        ask(client, **params)
    assert e.value.param == field


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_object"}},
        {"extra_body": {"structured_outputs": {"regex": "a+"}}},
        {"extra_body": {"structured_outputs": {"json_object": True}}},
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_structures_that_leave_no_room_for_a_call_name_both_fields(
    client: openai.OpenAI, extra: dict[str, Any], choice: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as e:
        ask(client, tool_choice=choice, **extra)
    assert "response_format" in str(e.value) or "structured_outputs" in str(e.value)
    assert "tools" in str(e.value) or "tool_choice" in str(e.value)
    ask(client, tool_choice="none", **extra)


def test_a_schema_beside_tools_gives_a_text_or_calls(client: openai.OpenAI) -> None:
    """Whatever a random model likes: the answer is one of the two, in whole answers and in streams."""
    schema = {"type": "object", "properties": {"t": {"enum": [1, 2]}}, "required": ["t"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
    seen = set()
    for seed in range(12):
        choice = ask(client, response_format=form, seed=seed, max_tokens=120, temperature=1).choices[0]
        if choice.finish_reason == "tool_calls":
            assert choice.message.content in (None, "")
            for call in choice.message.tool_calls:
                assert json.loads(call.function.arguments)["a"] in (1, 2)
            seen.add("calls")
        elif choice.finish_reason == "stop":
            assert json.loads(choice.message.content)["t"] in (1, 2)
            seen.add("text")
        streamed = ask(client, response_format=form, seed=seed, max_tokens=120, temperature=1, stream=True)
        deltas = [c.choices[0].delta for c in streamed if c.choices]
        assert "".join(d.content or "" for d in deltas) == (choice.message.content or "")
    assert seen


def test_calls_of_a_model() -> None:
    """Deltas of a text that comes in pieces join to the message."""
    use = tool_use({"tools": TOOLS}, "hermes")
    assert use is not None
    text = 'Sure.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    reader = use.reader()
    deltas = [d for c in text for d in reader.feed(c, final=False)] + reader.feed("", final=True)
    assert "".join(d.get("content", "") for d in deltas) == reader.content == "Sure."
    (call,) = reader.calls
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    pieces = [d["tool_calls"][0]["function"]["arguments"] for d in deltas if "tool_calls" in d]
    assert "".join(pieces) == '{"a": 1}'
