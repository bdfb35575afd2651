"""Chat templates at the server: forms of messages, refusals, prefills, and artifacts without a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from artifacts import TEMPLATE, changed_tokenizer
from serving import Server, Start, prompt

USER = {"role": "user", "content": "x"}
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if not loop.first and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('roles alternate') }}"
    "{% endif %}{{ bos_token if loop.first }}{{ m.content }}{% endfor %}"
)
BAD_ARGUMENTS = ['{"a":', [], None, "null", 42, "x", "", "{bad}", '"x"', "x" * (1 << 20), {"a": 1}, '{"a": 1}']


def answer(response: Any) -> tuple[int, str]:
    assert response.status_code == 200, response.text
    body = response.json()
    return body["usage"]["prompt_tokens"], body["choices"][0]["message"]["content"]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_parts_of_text_are_joined(server: Server, role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    whole = answer(server.talk({"role": role, "content": "ab"}))
    assert answer(server.talk({"role": role, "content": parts})) == whole
    for bad in ([], [{"type": "text"}], [{"type": "audio"}]):
        response = server.talk({"role": role, "content": bad})
        assert response.status_code == 400
        assert "messages[0]" in response.json()["error"]["message"]


@pytest.mark.parametrize("prefill", ["The capital of France is", "two spaces  ", "x"])
def test_continued_messages(server: Server, prefill: str) -> None:
    messages = (USER, {"role": "assistant", "content": prefill})
    text = prompt(server, *messages, continue_final_message=True)
    assert text == f"<|user|>x</s><|assistant|>{prefill}"
    count, reply = answer(server.talk(*messages, continue_final_message=True))
    assert count == len(prefill) + 4
    assert prefill not in reply


def test_missing_content_is_empty(server: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    forms: list[dict[str, Any]] = [{"content": None}, {}, {"content": ""}]
    texts = {prompt(server, USER, {"role": "assistant", "tool_calls": [call], **form}) for form in forms}
    answers = {answer(server.talk(USER, {"role": "assistant", "tool_calls": [call], **form})) for form in forms}
    assert len(texts) == len(answers) == 1
    assert "None" not in texts.pop()


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=range(len(BAD_ARGUMENTS)))
def test_arguments_of_earlier_calls(server: Server, arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    response = server.talk(USER, {"role": "assistant", "tool_calls": [call]})
    assert response.status_code in (200, 400)
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("calls", [5, [5], [{}], [{"function": {"name": 5}}]])
def test_calls_that_are_none(server: Server, calls: Any) -> None:
    response = server.talk(USER, {"role": "assistant", "tool_calls": calls})
    assert response.status_code == 400
    assert "messages[1].tool_calls" in response.json()["error"]["message"]


def test_images_are_not_fetched(server: Server) -> None:
    for link in ("http://127.0.0.1:9/x", "file:///etc/passwd", "data:image/png;base64,AAAA"):
        part = {"type": "image_url", "image_url": {"url": link}}
        response = server.talk({"role": "user", "content": [part]})
        assert response.status_code == 400
        assert "image_url" in response.json()["error"]["message"]


@pytest.fixture
def bare_artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    """The tiny artifact without a chat template."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("chat_template", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        for template in folder.glob("*.jinja"):
            template.unlink()

    return changed_tokenizer(tiny_artifact, tmp_path / "bare", change)


def test_one_beginning_of_text(start: Start, tiny_artifact: Path, tmp_path: Path) -> None:
    """Both the tokenizer and the template write it: the template does in chats, the tokenizer in completions."""

    def change(folder: Path) -> None:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 256)])
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text("{{ bos_token }}" + TEMPLATE)

    server = start(artifact=changed_tokenizer(tiny_artifact, tmp_path / "bos", change)).ready()
    for more in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        assert prompt(server, USER, **more) == "<s><|user|>x</s><|assistant|>"
        assert server.talk(USER, **more).json()["usage"]["prompt_tokens"] == 5
    assert server.complete(prompt="hi").json()["usage"]["prompt_tokens"] == 3
    assert server.complete(prompt="hi", add_special_tokens=False).json()["usage"]["prompt_tokens"] == 2


def test_no_template(start: Start, bare_artifact: Path, tmp_path: Path) -> None:
    server = start(artifact=bare_artifact).ready()
    response = server.talk(USER)
    assert response.status_code == 400
    assert "--chat-template" in response.json()["error"]["message"]
    assert server.complete().status_code == 200
    file = tmp_path / "given.jinja"
    file.write_text("{{ messages[0].content }}!")
    server = start("--chat-template", str(file), artifact=bare_artifact).ready()
    assert prompt(server, USER) == "x!"
    assert server.talk(USER).status_code == 200


def test_template_from_a_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "strict.jinja"
    file.write_text(STRICT)
    server = start("--chat-template", str(file)).ready()
    for messages, text in (([{"role": "system", "content": "x"}], "no system role"), ([USER, USER], "roles alternate")):
        response = server.talk(*messages)
        assert response.status_code == 400
        assert text in response.json()["error"]["message"]
    assert prompt(server, USER) == "<s>x"
    assert prompt(server, USER, add_special_tokens=True) == "<s>x"
    assert server.talk(USER).status_code == 200
