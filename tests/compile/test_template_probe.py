"""The token that a chat template writes at the end of an assistant's turn, and templates that do not work."""

from __future__ import annotations

import json
import warnings

import pytest

from inferir.compile.template_probe import probe_templates, turn_end
from inferir.frontend.tokenizer.template_files import TemplateWarning
from inferir.runtime.text.chat_template import ChatTemplate

LOOP = "{%% for m in messages %%}%s{%% endfor %%}"
PROMPT = "{%% if add_generation_prompt %%}%s{%% endif %%}"

CHATML = LOOP % "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n" + PROMPT % "<|im_start|>assistant\n"
CHATML_DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}" + CHATML
)
HEADERS = (
    "{{ bos_token }}"
    + LOOP % "<|start|>{{ m.role }}<|mid|>\n\n{{ m.content | trim }}<|eot|>"
    + PROMPT % "<|start|>assistant<|mid|>\n\n"
)
INSTRUCTIONS = (
    "{{ bos_token }}"
    + LOOP
    % "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + LOOP % "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n"
    + PROMPT % "<start_of_turn>model\n"
)
ROLES = LOOP % "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n" + PROMPT % "<|assistant|>\n"
LAST_ONLY = LOOP % (
    "<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}"
)
FIXED_SYSTEM = "<|start|>system<|message|>You help.<|end|>" + LAST_ONLY
NOTHING = LOOP % "{{ m.role }}: {{ m.content }}\n" + PROMPT % "assistant: "
TEXT_END = LOOP % "{{ m.role }}: {{ m.content }}###\n"
NEXT_TURN = LOOP % "<|{{ m.role }}|>{{ m.content }}" + "<|assistant|>"
NEXT_TURN_HEADERS = LOOP % "<|{{ m.role }}|><|mid|>{{ m.content }}" + "<|assistant|><|mid|>"
SEPARATOR = LOOP % "<|start|>{{ m.role }}\n{{ m.content }}" + "<|start|>assistant\n"
ONLY_USERS = LOOP % "{% if m.role == 'user' %}{{ m.content }}{% endif %}"
EVERY_TURN_TWICE = LOOP % "<|start|>{{ m.content }}<|mid|>{{ m.content }}<|end|>"
STRICT = LOOP % (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{{ m.content }}<|end|>"
)

CONTROL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "<|start|>", "<|mid|>", "<|message|>", "<|eot|>",
    "<|end|>", "<|return|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "",
)  # fmt: skip


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, "<|im_end|>"),
        (CHATML_DEFAULT_SYSTEM, "<|im_end|>"),
        (HEADERS, "<|eot|>"),
        (INSTRUCTIONS, "</s>"),
        (NO_SYSTEM, "<end_of_turn>"),
        (ROLES, "<|end|>"),
        (LAST_ONLY, "<|return|>"),
        (FIXED_SYSTEM, "<|return|>"),
        (EVERY_TURN_TWICE, "<|end|>"),
        (STRICT, "<|end|>"),
        (NOTHING, None),
        (TEXT_END, None),
        (NEXT_TURN, None),
        (NEXT_TURN_HEADERS, None),
        (SEPARATOR, None),
        (ONLY_USERS, None),
        ("{{ messages[7].content }}", None),
        ("constant", None),
        ("", None),
    ],
)
def test_end_of_an_assistants_turn(template: str, end: str | None) -> None:
    assert turn_end(ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}), CONTROL) == end


def test_a_token_that_is_not_control_ends_nothing() -> None:
    assert turn_end(ChatTemplate(CHATML), ("<|im_start|>",)) is None


def probe(text: str, **special: str) -> dict[str, str]:
    files = {
        "chat_template.jinja": text.encode(),
        "chat_template.tool_use.jinja": CHATML.encode(),
        "special_tokens_map.json": json.dumps(special).encode(),
    }
    return probe_templates(files, {"default": "the file", "tool_use": "another"}, CONTROL)


def test_every_named_template_is_asked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe(INSTRUCTIONS, eos_token="</s>") == {"default": "</s>", "tool_use": "<|im_end|>"}


@pytest.mark.parametrize("text", ["{% if x %}", "{{ x", "{% unknown %}", "{{ x | no_such_filter }}"])
def test_a_template_that_cannot_be_compiled_is_warned_about(text: str) -> None:
    with pytest.warns(TemplateWarning, match="the file: the chat template 'default' cannot be compiled") as seen:
        assert probe(text) == {"tool_use": "<|im_end|>"}
    assert "\n" not in str(seen[0].message)


@pytest.mark.parametrize(
    "text", ["{{ raise_exception('never') }}", "{{ 1 // 0 }}", "{% for x in range(10 ** 9) %}{% endfor %}"]
)
def test_a_template_that_renders_nothing_is_warned_about(text: str) -> None:
    with pytest.warns(TemplateWarning, match="the file: the chat template refuses a single message of a user") as seen:
        assert probe(text) == {"tool_use": "<|im_end|>"}
    assert "\n" not in str(seen[0].message)
