"""Chat templates render as transformers renders them, and fail with the template's own words."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.errors import RequestError
from inferir.runtime.text.chat_template import ChatTemplate
from inferir.runtime.text.chat_templates import ChatTemplates

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
TOOLS = (
    "{% set ns = namespace(n=0) %}{% for t in tools %}{% set ns.n = ns.n + 1 %}{{ ns.n }}:{{ t | tojson(indent=2) }}"
    "{% endfor %}{% for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ dict(a=1) | tojson }}"
)
MESSAGES = [{"role": "user", "content": "it's <b> é"}, {"role": "assistant", "content": " ok "}]


def load(folder: Path) -> ChatTemplate | None:
    """The default template of a tokenizer's folder."""
    found = ChatTemplates.load(folder)
    return None if found is None else found.pick(tools=False)


def test_chatml() -> None:
    text = ChatTemplate(CHATML).render(MESSAGES[:1])
    assert text == "<|im_start|>user\nit's <b> é<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("source", [CHATML, TRIMMING, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_equal_to_transformers(source: str, add_generation_prompt: bool) -> None:
    utils: Any = importlib.import_module("transformers.utils.chat_template_utils")
    tools = [{"type": "function", "function": {"name": "f", "description": "it's"}}]
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    expected = utils.render_jinja_template(
        [MESSAGES], tools=tools, chat_template=source, add_generation_prompt=add_generation_prompt, **tokens
    )[0][0]
    ours = ChatTemplate(source, tokens).render(MESSAGES, tools=tools, add_generation_prompt=add_generation_prompt)
    assert ours == expected


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
@pytest.mark.parametrize("prefill", ["The capital is", "ends with spaces  ", "user", "a"])
def test_continued_message_ends_the_prompt(source: str, prefill: str) -> None:
    messages = [{"role": "user", "content": "Capital? user a"}, {"role": "assistant", "content": prefill}]
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    text = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith(f"assistant\n{prefill}" if source is CHATML else f"[assistant] {prefill}")
    with pytest.raises(RequestError, match="exclude each other"):
        template.render(messages, add_generation_prompt=True, continue_final_message=True)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_content_forms(role: str) -> None:
    template = ChatTemplate(CHATML)
    plain = template.render([{"role": role, "content": "ab"}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": role, "content": parts}]) == plain
    empty = template.render([{"role": role, "content": ""}])
    assert template.render([{"role": role, "content": None}]) == template.render([{"role": role}]) == empty
    assert "None" not in empty


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "must not be empty"),
        ([{"content": "x"}], r"messages\[0\] needs a role"),
        ([{"role": "user", "content": []}], r"messages\[0\] has an empty list"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\] has a part of type 'text'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "'image_url'; only text"),
        ([{"role": "user", "content": 5}], "must be a string"),
    ],
)
def test_messages_that_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as e:
        ChatTemplate(CHATML).render(messages)
    assert e.value.field == "messages"


def test_the_templates_own_refusal() -> None:
    template = ChatTemplate(STRICT)
    with pytest.raises(RequestError, match="no system role here"):
        template.render([{"role": "system", "content": "x"}])
    assert template.render([{"role": "user", "content": "x"}]) == "x"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{{ dict.__init__.__globals__ }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_templates_cannot_reach_out_or_crash(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError, match="chat template"):
        ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ({"a": 1}, '{"a": 1}'),
        ("", "{}"),
        (None, "{}"),
        ('{"a":', '"{\\"a\\":"'),
        ("[]", '"[]"'),
    ],
)
def test_arguments_of_tool_calls(arguments: Any, text: str) -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    assert template.render([{"role": "assistant", "tool_calls": calls}]) == text
    assert (
        ChatTemplate("{{ messages[0].tool_calls is defined }}").render([{"role": "x", "tool_calls": None}]) == "False"
    )


def test_variables_and_date() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') | length }}{{ thinking }}{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": "x"}], variables={"thinking": "on", "messages": 3}) == "4onx"


def test_where_the_template_is_found(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    config = {"chat_template": "config{{ bos_token }}", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    message = [{"role": "user", "content": "x"}]

    def render() -> str:
        template = load(tmp_path)
        assert template is not None
        return template.render(message)

    assert render() == "config<s>"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert render() == "named"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert render() == "file"
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(RequestError, match="chat template"):
        load(tmp_path)
