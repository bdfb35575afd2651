"""Messages as templates get them: without fields that hold nothing, and with all text in one form."""

from __future__ import annotations

from typing import Any

import pytest

from inferir.ir.errors import RequestError
from inferir.runtime.text.chat_messages import clean, is_template_role
from inferir.runtime.text.chat_template import ChatTemplate

ASKING = (
    "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}"
    "{% for key in m %}{{ key }},{% endfor %}{{ m.content }};{% endfor %}"
)
NOTHING: list[tuple[str, Any]] = [
    ("tool_calls", []),
    ("tool_calls", None),
    ("name", None),
    ("name", ""),
    ("refusal", None),
    ("refusal", ""),
    ("audio", None),
    ("annotations", []),
    ("function_call", None),
    ("function_call", {}),
    ("reasoning_content", None),
    ("reasoning_content", ""),
    ("tool_call_id", None),
    ("tool_calls", ()),
]


@pytest.mark.parametrize(("name", "value"), NOTHING)
def test_nothing_is_not_there(name: str, value: Any) -> None:
    template = ChatTemplate(ASKING)
    message = {"role": "assistant", "content": "hello"}
    assert template.render([{**message, name: value}]) == template.render([message]) == "role,content,hello;"


def test_values_that_are_something_stay() -> None:
    (message,) = clean([{"role": "user", "name": "x", "content": "", "weight": 0, "flag": False, "notes": ["a"]}])
    assert message == {"role": "user", "name": "x", "content": "", "weight": 0, "flag": False, "notes": ["a"]}


def test_nothing_in_calls() -> None:
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": ""}}
    (message,) = clean([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]


def test_refusals_are_text() -> None:
    parts = [{"type": "text", "text": "No: "}, {"type": "refusal", "refusal": "I will not."}]
    assert clean([{"role": "assistant", "content": parts}])[0]["content"] == "No: I will not."
    with pytest.raises(
        RequestError, match=r"messages\[0\] has a part of type 'refusal', whose 'refusal' must be a str"
    ):
        clean([{"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}])
    with pytest.raises(RequestError, match=r"messages\[0\] has a part of type 'text', whose 'text' must be a string"):
        clean([{"role": "user", "content": [{"type": "text", "text": None}]}])
    with pytest.raises(RequestError, match=r"a part of type \['text'\]; only text is supported"):
        clean([{"role": "user", "content": [{"type": ["text"], "text": "x"}]}])


@pytest.mark.parametrize("nothing", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a_refusal_is_what_was_said_where_there_is_no_content(nothing: dict[str, Any]) -> None:
    (message,) = clean([{"role": "assistant", "refusal": "No.", **nothing}])
    assert message["content"] == "No."
    assert clean([{"role": "assistant", "refusal": "No.", "content": "Yes."}])[0]["content"] == "Yes."
    with pytest.raises(RequestError, match="part of type"):
        clean([{"role": "assistant", "content": [{"type": ["text"], "text": "x"}]}])


@pytest.mark.parametrize("messages", ["text", {"role": "user"}, 5, [5], ["x"], [{"role": 5}]])
def test_what_are_no_messages(messages: Any) -> None:
    with pytest.raises(RequestError) as e:
        clean(messages)
    assert e.value.field == "messages"


def test_messages_that_are_nested_too_deeply() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    with pytest.raises(RequestError, match=r"messages\[0\]\.notes is nested too deeply"):
        ChatTemplate("x").render([{"role": "user", "content": "x", "notes": value}])


def test_roles_of_a_template() -> None:
    assert is_template_role("user", "")
    assert is_template_role("ipython", "{% if role == 'ipython' %}")
    assert is_template_role("context", '{{ "context" }}')
    assert not is_template_role("im_end", "'<|im_end|>'")
    assert not is_template_role("x|>", "'x|>'")
