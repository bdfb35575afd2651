"""Validation: every bad body is a 4xx in OpenAI's shape that names the field, and the server goes on."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Server, Start

GENERATE = ("/v1/completions", "/v1/chat/completions")
PART = "messages[0].content[0].type"
USER = {"role": "user", "content": "x"}


def check_error(response: Any, status: int = 400, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param
    message: str = error["message"]
    return message


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x" * 500}, "prompt"),
        ({"prompt": ["x"] * 2000}, "prompt"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_k": 2**70}, "top_k"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids"),
        ({"logit_bias": {"5": 10**400}}, "logit_bias"),
        ({"seed": 1.5}, "seed"),
        ({"n": 100000}, "n"),
        ({"n": "2"}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": [True]}, "stream_options"),
        ({"stop": ["x"] * 100000}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"prompt_embeds": "gASVAAAA"}, "prompt_embeds"),
        ({"best_of": 10**6}, "best_of"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"guided_json": {}}, "guided_json"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"response_format": "json"}, "response_format"),
    ],
)
def test_completion_fields(server: Server, body: dict[str, Any], field: str) -> None:
    check_error(server.complete(**body), param=field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, PART),
        ({"messages": [USER] * 5000}, "messages"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_chat_fields(server: Server, body: dict[str, Any], field: str) -> None:
    check_error(server.talk(USER, **body), param=field)


@pytest.mark.parametrize("field", ["repetition_penalty", "logprobs", "user", "logit_bias", "stop", "seed"])
def test_values_that_ask_for_nothing(server: Server, field: str) -> None:
    value = {"repetition_penalty": 1.0, "user": "me", "logit_bias": {}}.get(field)
    assert server.complete(**{field: value}, ignore_eos=True, metadata={}, suffix="").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b"null",
        b'"x"',
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": 1e400}',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "x", "seed": ' + b"9" * 10_000 + b"}",
        b'{"prompt": "x", "seed": 99999999999999999999999999}',
    ],
    ids=range(13),
)
@pytest.mark.parametrize("path", GENERATE)
def test_bodies_that_are_not_what_they_should_be(server: Server, path: str, body: bytes) -> None:
    check_error(server.http.post(path, content=body, headers={"content-type": "application/json"}))


def test_other_content_types_and_large_bodies(server: Server) -> None:
    assert "text/plain" in check_error(
        server.http.post(GENERATE[0], content=b"{}", headers={"content-type": "text/plain"})
    )
    check_error(server.complete(prompt="x" * (9 << 20)), 413)
    parts = (b" " * (1 << 20) for _ in range(9))
    check_error(server.http.post(GENERATE[0], content=parts, headers={"content-type": "application/json"}), 413)


def test_unknown_routes_and_methods(server: Server) -> None:
    check_error(server.get("/v1/nothing"), 404)
    check_error(server.get(GENERATE[0]), 405)
    check_error(server.post(GENERATE[0] + "/", {}), 404)
    check_error(server.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/etc"}), 404)


def test_unknown_fields_warn(server: Server) -> None:
    answer = server.complete(max_token=5, temprature=0, guided_jsn={})
    assert answer.status_code == 200
    assert "'guided_jsn'" in answer.headers["x-inferir-warning"]
    assert "did you mean max_tokens?" in answer.headers["x-inferir-warning"]
    assert "'temprature'" in answer.headers["x-inferir-warning"]
    assert any("temprature" in line for line in server.lines())


def test_unknown_fields_in_strict_mode(start: Start) -> None:
    server = start("--strict").ready()
    assert "did you mean max_tokens?" in check_error(server.complete(max_token=5), param="max_token")
    assert server.complete().status_code == 200


def test_priorities_and_salts(server: Server) -> None:
    plain = server.complete().json()["choices"]
    assert server.complete(priority=0, cache_salt="mine").json()["choices"] == plain
    check_error(server.complete(priority="high"), param="priority")
    assert "--scheduling-policy" in check_error(server.complete(priority=-5), param="priority")
    check_error(server.complete(priority=2**40), param="priority")
    check_error(server.complete(cache_salt=5), param="cache_salt")
    check_error(server.complete(cache_salt="x" * 5000), param="cache_salt")


def test_request_ids(server: Server) -> None:
    assert server.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    own = server.get("/health", headers={"x-request-id": "x" * 1000}).headers["x-request-id"]
    assert len(own) == 32


def test_tokenize_and_back(server: Server) -> None:
    got = server.post("/tokenize", {"prompt": "héllo</s>", "return_token_strs": True}).json()
    assert got["count"] == len(got["tokens"]) == len(got["token_strs"])
    assert got["tokens"][-1] == 257
    assert got["max_model_len"] == 128
    assert server.post("/detokenize", {"tokens": got["tokens"]}).json() == {"prompt": "héllo</s>"}
    chat = server.post("/tokenize", {"messages": [USER]}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": chat}).json() == {"prompt": "<|user|>x</s><|assistant|>"}
    check_error(server.post("/tokenize", {}))
    check_error(server.post("/detokenize", {"tokens": [10**6]}), param="tokens")
    check_error(server.post("/detokenize", {"tokens": ["a"]}), param="tokens")
