"""The table of fields: complete against the OpenAI client's types, told in the docs, and true of a running server."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import field_page
import openai
import pytest
import typing_extensions
from openai.resources import Completions
from openai.resources.chat.completions import Completions as Chats
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from serving import Server, Start

from inferir.server.openai.field_table import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE
from inferir.server.openai.kinds import DEPENDS, IDLE, OBEYED, OBJECT, REFUSED, Off, Record

PAGE = Path(__file__).resolve().parents[3] / "docs" / "server.md"
USER = {"role": "user", "content": "x"}
PATHS = {"/v1/completions": COMPLETIONS, "/v1/chat/completions": CHAT}
TRANSPORT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def ask(server: Server, path: str, body: dict[str, Any], *, stream: bool) -> tuple[Any, Any]:
    """The response, and what the answers are: text and calls by index, finish reasons, and the keys of choices."""
    first = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [USER]}
    whole = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, **first, **body}
    response = server.post(path, {**whole, "stream": stream})
    if response.status_code != 200:
        return response, None
    if not stream:
        choices = response.json()["choices"]
        return response, [(c.get("text", c.get("message", {}).get("content")), c["finish_reason"]) for c in choices]
    events = [json.loads(e.removeprefix("data: ")) for e in response.text.split("\n\n")[:-2]]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in (c for e in events for c in e["choices"]):
        piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        texts[choice["index"]] = texts.get(choice["index"], "") + piece
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    return response, [(texts[i], reasons[i]) for i in sorted(texts)]


# --- the table is complete, and the page shows it --------------------------------------------------------------------


def test_the_page_shows_the_table() -> None:
    """Run `python tests/field_page.py docs/server.md` after a change."""
    text = PAGE.read_text(encoding="utf-8")
    assert field_page.written(text) == text


@pytest.mark.parametrize(("create", "record"), [(Completions.create, COMPLETIONS), (Chats.create, CHAT)])
def test_every_parameter_of_the_client_is_known(create: Callable[..., Any], record: Record) -> None:
    assert set(inspect.signature(create).parameters) - TRANSPORT <= set(record.by_name)


def paths_of(kind: Any, path: str = "") -> Iterator[str]:
    """Paths of all keys of a typed dictionary of the client, at any depth."""
    origin = typing.get_origin(kind)
    if typing_extensions.is_typeddict(kind):
        for name, inner in typing_extensions.get_type_hints(kind).items():
            yield f"{path}.{name}" if path else name
            yield from paths_of(inner, f"{path}.{name}" if path else name)
    elif origin is not None and origin is not typing.Literal:
        listed = origin not in (typing.Union, dict, typing_extensions.Required) and "Union" not in str(origin)
        for one in typing.get_args(kind):
            yield from paths_of(one, f"{path}[]" if listed and isinstance(origin, type) else path)


def test_every_key_of_the_clients_types_is_known() -> None:
    """At any depth, but below what is refused or free as a whole, and for what only refused kinds have."""
    known = dict(field_page.rows(CHAT))
    whole = {path for path, field in known.items() if isinstance(field.kind, Off) or field.kind is OBJECT}
    media = ("messages[].content[].", ("image_url", "input_audio", "file"))
    custom = ("tools[].custom", "tool_choice.custom", "messages[].tool_calls[].custom")
    missing = [
        path
        for path in set(paths_of(CompletionCreateParamsStreaming))
        if path not in known
        and not any(path.startswith((f"{w}.", f"{w}[]")) for w in whole)
        and not path.startswith(custom)
        and not path.startswith(tuple(media[0] + name for name in media[1]))
    ]
    assert missing == []
    assert len(set(paths_of(CompletionCreateParamsStreaming))) > 100


# --- what is refused, and what has no effect -------------------------------------------------------------------------

IDLE_SAMPLES: dict[str, Any] = {
    "user": "me",
    "safety_identifier": "me",
    "metadata": {"a": "b"},
    "service_tier": "priority",
    "prompt_cache_key": "k",
    "spaces_between_special_tokens": False,
}


def top_level(path: str, effect: str) -> list[str]:
    return [f.name for f in PATHS[path].fields if f.effect == effect]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_refused_fields(server: Server, path: str, stream: bool) -> None:
    for name in top_level(path, REFUSED):
        kind = PATHS[path].by_name[name].kind
        assert isinstance(kind, Off)
        response, _ = ask(server, path, {name: "something"}, stream=stream)
        assert (name, response.status_code) == (name, 400)
        assert response.json()["error"]["param"] == name
        for nothing in (None, *kind.values):
            assert (name, ask(server, path, {name: nothing}, stream=stream)[0].status_code) == (name, 200)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_fields_without_effect(server: Server, path: str, stream: bool) -> None:
    plain = ask(server, path, {}, stream=stream)[1]
    assert set(top_level(path, IDLE)) == set(IDLE_SAMPLES)
    for name, value in IDLE_SAMPLES.items():
        response, answer = ask(server, path, {name: value}, stream=stream)
        assert (name, answer) == (name, plain)
        assert "x-inferir-warning" not in response.headers
        assert ask(server, path, {name: 5}, stream=stream)[0].json()["error"]["param"] == name


# --- what is obeyed --------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CHOICE = {"structured_outputs": {"choice": ["yes, yes"]}}
SEEDED = {"temperature": 1, "seed": 1}
# Fields and values that change the answer of the body beside them.
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "n": ({}, 2),
    "max_tokens": ({}, 2),
    "max_completion_tokens": ({"max_tokens": None}, 2),
    "temperature": ({"temperature": 0, "seed": 1}, 5),
    "seed": ({"temperature": 1, "seed": 1}, 2),
    "top_p": ({**SEEDED, "temperature": 5}, 0),
    "top_k": ({**SEEDED, "temperature": 5}, 1),
    "min_p": ({**SEEDED, "temperature": 5}, 1),
    "presence_penalty": ({"max_tokens": 60}, 2),
    "frequency_penalty": ({"max_tokens": 60}, 2),
    "repetition_penalty": ({"max_tokens": 60}, 5),
    "logit_bias": ({}, {"70": 100}),
    "allowed_token_ids": ({}, [70]),
    "bad_words": ({"allowed_token_ids": [70, 71], "logit_bias": {"70": 100}}, ["g"]),
    "stop": ({"allowed_token_ids": [70]}, ["g"]),
    "stop_token_ids": ({"allowed_token_ids": [70]}, [70]),
    "include_stop_str_in_output": ({"allowed_token_ids": [70], "stop": ["g"]}, True),
    "ignore_eos": ({"allowed_token_ids": [257], "ignore_eos": False}, True),
    "min_tokens": ({"allowed_token_ids": [257, 70], "logit_bias": {"257": 100}, "ignore_eos": False}, 3),
    "skip_special_tokens": ({"allowed_token_ids": [258]}, False),
    "structured_outputs": ({"ignore_eos": False, "max_tokens": 20}, {"choice": ["yes"]}),
    "response_format": (
        {"ignore_eos": False, "max_tokens": 30},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 5}}},
    ),
    "truncate_prompt_tokens": ({"prompt": "abcdefgh", "messages": [{"role": "user", "content": "abcdefgh"}]}, 1),
    "echo": ({}, True),
    "prompt": ({}, "other"),
    "messages": ({}, [{"role": "user", "content": "another"}]),
    "add_generation_prompt": ({}, False),
    "chat_template_kwargs": ({}, {"bos_token": "x"}),
    "continue_final_message": ({"messages": [USER, {"role": "assistant", "content": "ab"}]}, True),
    "tool_choice": ({"tools": TOOLS, "ignore_eos": False, "max_tokens": 60}, "required"),
}
# Fields that change something else, or nothing with this model: what the response has because of them.
SHOWS: dict[str, tuple[dict[str, Any], str]] = {
    "return_token_ids": ({"return_token_ids": True}, '"token_ids":['),
    "logprobs": ({"logprobs": 1}, '"top_logprobs":['),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 2}, '"top_logprobs":[{'),
    "prompt_logprobs": ({"prompt_logprobs": 1}, '"prompt_logprobs":[null,{'),
    "request_id": ({"request_id": "mine-1"}, '-mine-1"'),
    "stream": ({}, '"choices"'),
    "model": ({"model": "tiny"}, '"model":"tiny"'),
}
ELSEWHERE = {  # tested with the templates, the cache and the scheduler
    "tools",
    "parallel_tool_calls",
    "cache_salt",
    "add_special_tokens",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_obeyed_fields(server: Server, path: str, stream: bool) -> None:
    record = PATHS[path]
    names = set(top_level(path, OBEYED))
    assert names <= {*CHANGES, *SHOWS, *ELSEWHERE}
    for name in sorted(names & set(CHANGES)):
        before, value = CHANGES[name]
        beside = {k: v for k, v in before.items() if k in record.by_name}
        _, plain = ask(server, path, beside, stream=stream)
        response, changed = ask(server, path, {**beside, name: value}, stream=stream)
        assert (name, response.status_code) == (name, 200), response.text
        if name == "chat_template_kwargs":  # no variable of the template that the server does not set itself
            continue
        assert plain is not None
        assert (name, changed != plain) == (name, True)
    for name in sorted(names & set(SHOWS)):
        body, wanted = SHOWS[name]
        body = {"logprobs": True, "top_logprobs": 1} if name == "logprobs" and record is CHAT else body
        response, _ = ask(server, path, body, stream=stream)
        assert (name, wanted in response.text) == (name, True)
        if name not in ("stream", "model"):
            assert wanted not in ask(server, path, {}, stream=stream)[0].text


def test_scores_of_the_prompt_come_first(server: Server) -> None:
    for path in PATHS:
        body = {"prompt_logprobs": 2, "n": 3, "seed": 1, "temperature": 1}
        whole, answers = ask(server, path, body, stream=False)
        streamed, same = ask(server, path, body, stream=True)
        assert answers == same
        events = [json.loads(e.removeprefix("data: ")) for e in streamed.text.split("\n\n")[:-2]]
        if path == "/v1/completions":
            found = {c["index"]: c["prompt_logprobs"] for e in events for c in e["choices"] if "prompt_logprobs" in c}
            assert found == {c["index"]: c["prompt_logprobs"] for c in whole.json()["choices"]}
            firsts = {e["choices"][0]["index"]: e["choices"][0] for e in reversed(events)}
            assert all("prompt_logprobs" in c for c in firsts.values())
        else:
            assert events[0]["prompt_logprobs"] == whole.json()["prompt_logprobs"]
            assert sum("prompt_logprobs" in e for e in events) == 1


DEPENDING: list[tuple[dict[str, Any], str]] = [
    ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
    ({"stream_options": {"continuous_usage_stats": True}, "stream": True}, "stream_options.continuous_usage_stats"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options.include_obfuscation"),
    ({"best_of": 2}, "best_of"),
    ({"priority": 1}, "priority"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options.mode"),
    ({"prompt_cache_options": {"ttl": "30m"}}, "prompt_cache_options.ttl"),
]


@pytest.mark.parametrize(("body", "field"), DEPENDING)
def test_fields_that_depend_on_others(server: Server, body: dict[str, Any], field: str) -> None:
    response = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 2, **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
    assert field in response.json()["error"]["message"]


def test_every_field_that_depends_is_tried() -> None:
    names = {f.name for record in PATHS.values() for f in record.fields if f.effect == DEPENDS}
    assert names <= {field.split(".")[0] for _, field in DEPENDING}


# --- every depth -----------------------------------------------------------------------------------------------------

FUNCTION = {"name": "f", "parameters": {}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(**more: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": "a", **more}]}


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge"),
    ({"response_format": {"type": "text", "x": 1}}, "response_format.x"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}},
        "response_format.json_schema.x",
    ),
    ({"structured_outputs": {"choice": ["a"], "x": 1}}, "structured_outputs.x"),
    ({"tools": [{"type": "function", "function": FUNCTION, "x": 1}]}, "tools[0].x"),
    ({"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]}, "tools[0].function.x"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
        "tool_choice.function.x",
    ),
    ({"messages": [{**USER, "x": 1}]}, "messages[0].x"),
    ({"messages": [{**USER, "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "messages[0].content[0].x"),
    (said(tool_calls=[{**CALL, "x": 1}]), "messages[1].tool_calls[0].x"),
    (said(tool_calls=[{**CALL, "function": {**CALL["function"], "x": 1}}]), "messages[1].tool_calls[0].function.x"),
]


@pytest.fixture(scope="module")
def strict(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tiny_artifact, tmp_path_factory.mktemp("strict") / "log", "--strict")
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.mark.parametrize(("body", "path"), UNKNOWN)
def test_unknown_keys_at_any_depth(server: Server, strict: Server, body: dict[str, Any], path: str) -> None:
    full = {"messages": [USER], "max_tokens": 2, **body}
    answer = server.post("/v1/chat/completions", full)
    assert answer.status_code == 200, answer.text
    assert repr(path) in answer.headers["x-inferir-warning"]
    refused = strict.post("/v1/chat/completions", full)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == path


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"response_format": {"type": 5}}, "response_format.type"),
    ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "x"}}},
        "response_format.json_schema.strict",
    ),
    ({"structured_outputs": {"x": 1}}, "structured_outputs"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {**FUNCTION, "strict": "yes"}}]}, "tools[0].function.strict"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice.function.name"),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"messages": [{"role": 5}]}, "messages[0].role"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{**USER, "name": 5}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content[0].type"),
    (said(audio={"id": "x"}), "messages[1].audio"),
    (said(function_call={"name": "f", "arguments": ""}), "messages[1].function_call"),
    (said(tool_calls=[{**CALL, "type": "custom"}]), "messages[1].tool_calls[0].type"),
    (said(tool_calls=[{**CALL, "id": 5}]), "messages[1].tool_calls[0].id"),
]


@pytest.mark.parametrize(("body", "path"), WRONG)
def test_wrong_values_at_any_depth(server: Server, body: dict[str, Any], path: str) -> None:
    for stream in (False, True):
        if "stream_options" in body and not stream:
            continue
        full = {"messages": [USER], "max_tokens": 2, **body, "stream": stream}
        answer = server.post("/v1/chat/completions", full)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == path
        assert path in answer.json()["error"]["message"]


def test_many_unknown_keys_cost_little(server: Server) -> None:
    answer = server.complete(**{f"max_token{i}": 1 for i in range(50_000)})
    assert answer.status_code == 200
    assert "49990 more" in answer.headers["x-inferir-warning"]


def test_null_is_absent_at_any_depth(server: Server) -> None:
    message = {**USER, "name": None, "tool_calls": None, "refusal": None, "audio": None, "function_call": None}
    body = {
        "messages": [message],
        "stream_options": None,
        "response_format": {"type": "text", "json_schema": None},
        "tools": [{"type": "function", "function": {**FUNCTION, "description": None, "strict": None}}],
        "max_tokens": 2,
    }
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert "unknown" not in answer.headers.get("x-inferir-warning", "")


# --- numbers and refusals --------------------------------------------------------------------------------------------


def test_whole_numbers(server: Server) -> None:
    body = {"n": 2, "seed": 5, "top_k": 4, "min_tokens": 1, "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 5}
    floats = {name: float(value) for name, value in body.items()}
    more = {"temperature": 1, "truncate_prompt_tokens": 2.0, "priority": 0.0, "best_of": 2.0, "stop_token_ids": [5.0]}
    answer = server.complete(**floats, **more, prompt=[104.0, 105], allowed_token_ids=[70.0, 71, 72.0])
    assert answer.status_code == 200, answer.text
    same = server.complete(**body, temperature=1, prompt=[104, 105], allowed_token_ids=[70, 71, 72])
    assert answer.json()["choices"] == same.json()["choices"]
    assert server.post("/detokenize", {"tokens": [70.0, 71]}).status_code == 200
    for name in body:
        assert server.complete(**{name: body[name] + 0.5}).json()["error"]["param"] == name
        assert server.complete(**{name: 1e300}).status_code == 400
    raw = b'{"prompt": "x", "max_tokens": 1e400}'
    sent = server.http.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert sent.status_code == 400


def test_top_p_of_nothing(server: Server) -> None:
    greedy = server.complete(max_tokens=20).json()["choices"]
    for top_p in (0, 0.0, 1e-300):
        assert server.complete(max_tokens=20, temperature=1, top_p=top_p, seed=3).json()["choices"] == greedy


def test_refusals_are_text(server: Server) -> None:
    def prompt(**message: Any) -> Any:
        answer = server.post("/tokenize", {"messages": [USER, {"role": "assistant", **message}]})
        assert answer.status_code == 200, answer.text
        return answer.json()["tokens"]

    plain = prompt(content="No.")
    assert prompt(content=[{"type": "refusal", "refusal": "No."}]) == plain
    assert prompt(content=None, refusal="No.") == plain
    assert prompt(content=[{"type": "text", "text": "N"}, {"type": "refusal", "refusal": "o."}]) == plain


def test_a_text_has_no_fields_of_messages(server: Server) -> None:
    for name, value in (("tools", TOOLS), ("chat_template_kwargs", {"a": 1}), ("continue_final_message", True)):
        answer = server.post("/tokenize", {"prompt": "x", name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_priorities_where_they_count(start: Start) -> None:
    server = start("--scheduling-policy", "priority").ready()
    assert server.complete(priority=-5).status_code == 200


def test_the_client_sends_nested_types(client: openai.OpenAI) -> None:
    """What the client's own helpers make is accepted as it is."""
    answer = client.chat.completions.create(model="tiny", messages=[USER], max_tokens=2)  # type: ignore[list-item]
    message = answer.choices[0].message.model_dump()
    assert client.chat.completions.create(model="tiny", messages=[USER, message, USER], max_tokens=2).choices  # type: ignore[list-item]


def test_every_route_has_its_fields() -> None:
    assert set(TOKENIZE.by_name) >= {"prompt", "messages", "tools", "return_token_strs"}
    assert set(DETOKENIZE.by_name) == {"model", "tokens"}
