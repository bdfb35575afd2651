"""Which template renders, that every message arrives in the prompt, and what is told of what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.errors import ArtifactError, RequestError
from inferir.runtime.text.chat_template import ChatTemplate
from inferir.runtime.text.chat_templates import ChatPrompt, ChatTemplates

BRANCHES = (
    "{% for m in messages %}{% if m.role == 'system' %}[S]{{ m.content }}{% elif m.role == 'user' %}[U]{{ m.content }}"
    "{% elif m.role == 'assistant' %}[A]{{ m.content }}{% endif %}{% endfor %}"
)
USER: dict[str, Any] = {"role": "user", "content": "hello"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": "one"}'}}


def templates(source: str) -> ChatTemplates:
    return ChatTemplates({"default": ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})})


def prompt(source: str, *messages: Any, **options: Any) -> ChatPrompt:
    return templates(source).prompt(messages, **options)


@pytest.mark.parametrize("role", ["tool", "function", "foo", "User", "ipython"])
@pytest.mark.parametrize("content", ["lost", "hello", "[U]"])
def test_a_message_that_is_left_out(role: str, content: str) -> None:
    for messages in ([USER, {"role": role, "content": content}], [{"role": role, "content": content}, USER]):
        with pytest.raises(RequestError, match=r"leaves out messages\[[01]\], of the role ") as e:
            prompt(BRANCHES, *messages)
        assert repr(role) in str(e.value)
        assert f"messages[{messages.index({'role': role, 'content': content})}]" in str(e.value)
        assert e.value.field == "messages"


@pytest.mark.parametrize("content", ["", " \n", None])
def test_a_message_without_text_may_be_left_out(content: str | None) -> None:
    assert prompt(BRANCHES, USER, {"role": "tool", "content": content}).text == "[U]hello"


def test_developer_is_system_where_there_is_no_branch_for_it() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    assert prompt(BRANCHES, developer, USER).text == "[S]Be brief.[U]hello"
    strict = BRANCHES.replace("{% endif %}", "{% else %}{{ raise_exception('no role ' + m.role) }}{% endif %}")
    assert prompt(strict, developer, USER).text == "[S]Be brief.[U]hello"
    own = BRANCHES.replace("{% endif %}", "{% elif m.role == 'developer' %}[D]{{ m.content }}{% endif %}")
    assert prompt(own, developer, USER).text == "[D]Be brief.[U]hello"
    with pytest.raises(RequestError, match="of the role 'developer'"):
        prompt("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", developer, USER)
    with pytest.raises(RequestError, match="of the role 'tool'"):
        prompt(BRANCHES, developer, USER, {"role": "tool", "content": "3"})


def test_a_later_system_message() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    )
    system = {"role": "system", "content": "Rules."}
    assert prompt(source, system, USER).text == "Rules.hello"
    with pytest.raises(RequestError, match=r"messages\[1\], of the role 'system'"):
        prompt(source, USER, system)


# Short templates in the manner of well-known families; each leaves something out on purpose.
FAMILIES = {
    "trims, one system text before all": (
        "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}{% else %}"
        "{% set system, rest = '', messages %}{% endif %}{% for m in rest %}{% if m.role == 'user' %}{{ bos_token }}"
        "[INST] {{ ('<<' + system + '>>' if loop.first and system else '') + m.content.strip() }} [/INST]{% else %}"
        " {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
    ),
    "calls without the text beside them": (
        "{% for m in messages %}{% if m.tool_calls is defined %}[CALLS]{{ m.tool_calls | tojson }}"
        "{% elif m.role == 'tool' %}[RESULT]{{ {'content': m.content} | tojson }}"
        "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
    ),
    "earlier reasoning is cut": (
        "{% for m in messages %}{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text %}"
        "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}<{{ m.role }}>{{ text }}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
        "{% endfor %}"
    ),
    "flags in the system text": (
        "{% set flag = '/no_think' in messages[0].content %}{% for m in messages %}<{{ m.role }}>"
        "{{ m.content.replace('/no_think', '').rstrip() }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}{{ '<think></think>' if flag }}"
    ),
    "results are parts of the user's turn": (
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
        "<user>{% endif %}<result>{{ m.content }}</result>{% else %}<{{ m.role }}>{{ m.content | trim }}"
        "{% for c in m.tool_calls or [] %}<call>{{ {'name': c.function.name} | tojson }}</call>{% endfor %}{% endif %}"
        "{% endfor %}"
    ),
    "one macro for every turn": (
        "{% macro turn(role, text) %}<|{{ role }}|>{{ text }}<|end|>{% endmacro %}{% for m in messages %}"
        "{{ turn('model' if m.role == 'assistant' else m.role, m.content | trim) }}"
        "{% if m.tool_calls %}{{ turn('call', m.tool_calls | map(attribute='function') | list) }}{% endif %}"
        "{% endfor %}"
    ),
    "channels": (
        "{% set dev = namespace(x='') %}{% for m in messages %}{% if m.role in ('system', 'developer') %}"
        "{% set dev.x = dev.x ~ '# Instructions\\n' ~ m.content %}{% endif %}{% endfor %}<|start|>developer{{ dev.x }}"
        "{% for m in messages %}{% if m.role == 'user' %}<|start|>user{{ m.content }}{% elif m.role == 'assistant' %}"
        "{% for c in m.tool_calls or [] %}to={{ c.function.name }}{% endfor %}<|channel|>final{{ m.content }}"
        "{% elif m.role == 'tool' %}<|start|>functions{{ m.content | tojson }}{% endif %}{% endfor %}"
    ),
}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": " Be brief.\n"}, USER],
    [USER, {"role": "assistant", "content": " ok "}, {"role": "user", "content": "hello"}],
    [USER, {"role": "assistant", "content": ""}, {"role": "user", "content": 'a < b && "c"\n\té'}],
]
WITH_CALLS: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"sum": 3}', "tool_call_id": "c1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n3"},
    {"role": "assistant", "content": "<think>\nonly reasoning\n</think>"},
    {"role": "user", "content": "/no_think"},
]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_false_alarm(family: str) -> None:
    for messages in CONVERSATIONS:
        assert prompt(FAMILIES[family], *messages).warnings == ()
    if family != "trims, one system text before all":
        assert prompt(FAMILIES[family], *WITH_CALLS).warnings == ()


def test_a_text_that_a_template_obeys_without_showing_it() -> None:
    flags = FAMILIES["flags in the system text"]
    assert prompt(flags, {"role": "system", "content": "/no_think"}, USER).text == "<system><user>hello<think></think>"


def test_calls_that_are_left_out_are_told() -> None:
    found = prompt(BRANCHES, USER, {"role": "assistant", "tool_calls": [CALL]})
    assert found.warnings == ("the chat template leaves out the tool_calls of messages[1]",)


@pytest.mark.parametrize("given", ['{"a": "one"}', {"a": "one"}], ids=["text", "object"])
@pytest.mark.parametrize("content", [None, "", "Let me see."])
@pytest.mark.parametrize("arguments", ["+ c.function.arguments", "~ c.function.arguments | tojson"])
@pytest.mark.parametrize("condition", ["m.tool_calls", "m.content is none", "m.content is none or m.tool_calls"])
def test_calls_in_the_form_that_the_template_expects(condition: str, arguments: str, content: Any, given: Any) -> None:
    """Some templates write calls only beside null as content, and some want their arguments as text."""
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and (CONDITION) %}{{ m.content or '' }}"
        "{% for c in m.tool_calls %}{{ '<call>' + c.function.name ARGUMENTS }}{% endfor %}"
        "{% else %}<{{ m.role }}>{{ m.content + '' }}{% endif %}{% endfor %}"
    )
    source = source.replace("CONDITION", condition).replace("ARGUMENTS", arguments)
    call = {**CALL, "function": {"name": "add", "arguments": given}}
    messages = [USER, {"role": "assistant", "content": content, "tool_calls": [call]}, {"role": "tool", "content": "3"}]
    found = prompt(source, *messages)
    if condition == "m.content is none" and content:
        assert found.warnings == ("the chat template leaves out the tool_calls of messages[1]",)
        assert found.text == "<user>hello<assistant>Let me see.<tool>3"
    else:
        assert found.warnings == ()
        # `tojson` of text would quote it: the form with text is for templates that cannot use an object.
        assert found.text == "<user>hello" + (content or "") + '<call>add{"a": "one"}<tool>3'


def test_a_refusal_of_calls_is_told_as_it_is() -> None:
    source = "{% for m in messages %}{{ raise_exception('one call only') if m.tool_calls else m.content }}{% endfor %}"
    with pytest.raises(RequestError, match="one call only"):
        prompt(source, USER, {"role": "assistant", "tool_calls": [CALL, CALL]})


def test_tools_that_the_template_ignores_are_told() -> None:
    (warning,) = prompt(BRANCHES, USER, tools=[TOOL]).warnings
    assert "tools" in warning
    assert prompt(BRANCHES, USER, tools=[]).warnings == ()
    assert prompt("{{ tools | tojson }}" + BRANCHES, USER, tools=[TOOL]).warnings == ()
    assert prompt("{% for t in tools %}{{ t.function.name }}{% endfor %}" + BRANCHES, USER, tools=[TOOL]).warnings == ()
    assert prompt("{{ 'You have tools.' if tools }}" + BRANCHES, USER, tools=[TOOL]).warnings == (warning,)


def folder(path: Path, config: Any = None, **files: str) -> Path:
    path.mkdir()
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"} if config is None else config))
    for name, text in files.items():
        (path / f"{name.replace('__', '.')}.jinja").write_text(text)
    return path


def loaded(path: Path) -> ChatTemplates:
    found = ChatTemplates.load(path)
    assert found is not None
    return found


PLAIN = "{{ messages[0].content }}"
WITH_TOOLS = "{{ bos_token }}{{ tools | tojson }}" + PLAIN


@pytest.mark.parametrize("form", ["files", "config"])
def test_tools_have_a_template_of_their_own(tmp_path: Path, form: str) -> None:
    """As in transformers: the template "tool_use" renders exactly where tools are given."""
    if form == "files":
        path = folder(tmp_path / "t", chat_template=PLAIN, chat_template__tool_use=WITH_TOOLS, chat_template__rag="x")
    else:
        named = [("tool_use", WITH_TOOLS), ("default", PLAIN), ("rag", "x")]
        listed = [{"name": n, "template": t} for n, t in named]
        path = folder(tmp_path / "t", {"bos_token": "<s>", "chat_template": listed})
    found = loaded(path)
    assert found.prompt([USER]).text == found.prompt([USER], tools=[]).text == "hello"
    with_tools = found.prompt([USER], tools=[TOOL])
    assert with_tools.text == "<s>" + json.dumps([TOOL]) + "hello"
    assert with_tools.warnings == ()
    assert found.source(tools=True) == WITH_TOOLS
    assert found.source(tools=False) == PLAIN
    assert found.usable


def test_without_a_default_template(tmp_path: Path) -> None:
    found = loaded(folder(tmp_path / "t", chat_template__tool_use=WITH_TOOLS))
    assert "hello" in found.prompt([USER], tools=[TOOL]).text
    assert not found.usable
    with pytest.raises(RequestError, match="no default chat template, only tool_use"):
        found.prompt([USER])
    assert ChatTemplates.load(folder(tmp_path / "none")) is None


BAD = {
    "unfinished": "{% if true %}",
    "an unknown filter": "{{ messages | nothing }}",
    "nested too deeply": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "too many blocks": "{% for a in x %}" * 40 + "{% endfor %}" * 40,
}


@pytest.mark.parametrize("name", BAD)
def test_a_template_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    """It harms only those who need it, and the message says which file it is."""
    found = loaded(folder(tmp_path / "t", chat_template=BAD[name], chat_template__tool_use=WITH_TOOLS))
    with pytest.raises(RequestError, match=r"t/chat_template\.jinja: .*--chat-template") as e:
        found.prompt([USER])
    assert "\n" not in str(e.value)
    assert not found.usable
    assert "hello" in found.prompt([USER], tools=[TOOL]).text
    (tmp_path / "given.jinja").write_text(BAD[name])
    with pytest.raises(ArtifactError, match=r"--option .*given\.jinja: "):
        ChatTemplates.from_file(tmp_path / "given.jinja", tmp_path / "t", "--option")


@pytest.mark.parametrize("value", [5, {"a": 1}, [{"name": "default"}], [{"template": 5, "name": "default"}], [5]])
def test_a_config_whose_template_is_none(tmp_path: Path, value: Any) -> None:
    found = loaded(folder(tmp_path / "t", {"chat_template": value}))
    with pytest.raises(RequestError, match="chat template"):
        found.prompt([USER])


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = folder(tmp_path / "t")
    (path / "chat_template.jinja").write_bytes(b"\xff\xfe{{")
    with pytest.raises(RequestError, match=r"t/chat_template\.jinja"):
        loaded(path).prompt([USER])


@pytest.mark.parametrize("where", ["messages", "tools", "variables"])
def test_half_a_surrogate_pair(where: str) -> None:
    bad = "a\udcffb"
    given: dict[str, Any] = {
        "messages": ([{"role": "user", "content": bad}], {}),
        "tools": ([USER], {"tools": [{"function": {"name": "f", "x": [{bad: 1}]}}]}),
        "variables": ([USER], {"variables": {"x": [bad]}}),
    }
    messages, options = given[where]
    with pytest.raises(RequestError, match="half of a surrogate pair") as e:
        prompt(BRANCHES, *messages, **options)
    assert e.value.field == {"variables": "chat_template_kwargs"}.get(where, where)
