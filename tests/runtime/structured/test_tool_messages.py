"""Deltas and messages with tool calls, in the shapes of the OpenAI API."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inferir.runtime.structured.tool_messages import ToolMessage, call_id

TEXT = (
    'One moment.\n<tool_call>{"name": "find", "arguments": {"q": "é"}}</tool_call>\n'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)
NAMES = frozenset({"find", "now"})


def message(*, parallel: bool = True) -> ToolMessage:
    ids = iter(f"id{i}" for i in range(9))
    return ToolMessage("hermes", NAMES, parallel=parallel, new_id=lambda: next(ids))


def collect(deltas: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """What a client makes of deltas."""
    content, calls = "", []
    for delta in deltas:
        content += delta.get("content", "")
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                assert call["function"]["arguments"] == ""
            else:
                assert "id" not in call
                assert "name" not in call["function"]
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return content, calls


def test_a_whole_text() -> None:
    made = message()
    made.feed(TEXT)
    made.finish()
    assert made.called
    assert made.message() == {
        "role": "assistant",
        "content": "One moment.",
        "refusal": None,
        "tool_calls": [
            {"id": "id0", "type": "function", "function": {"name": "find", "arguments": '{"q": "é"}'}},
            {"id": "id1", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=8), parallel=st.booleans())
def test_deltas_add_up_to_the_message(cuts: list[int], parallel: bool) -> None:
    made = message(parallel=parallel)
    deltas = []
    at = [0, *sorted(cuts), len(TEXT)]
    for i in range(len(at) - 1):
        deltas += made.feed(TEXT[at[i] : at[i + 1]])
    deltas += made.finish()
    content, calls = collect(deltas)
    assert len(calls) == (2 if parallel else 1)
    assert made.message() == {"role": "assistant", "content": content, "refusal": None, "tool_calls": calls}


def test_plain_text_and_calls_alone() -> None:
    made = message()
    assert made.feed("Hello ") + made.feed("there") + made.finish() == [{"content": "Hello"}, {"content": " there"}]
    assert not made.called
    assert made.message() == {"role": "assistant", "content": "Hello there", "refusal": None}
    made = message()
    made.feed(TEXT.removeprefix("One moment."))
    made.finish()
    assert made.message()["content"] is None


def test_ids_are_fresh() -> None:
    assert len({call_id() for _ in range(100)}) == 100
