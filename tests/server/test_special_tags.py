"""Tool calls of a model whose tags of calls are special tokens: they are read, and never shown as content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from artifacts import compile_tiny
from chain_model import write_chain_model
from families import ONE_BUCKET
from serving import Server

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BETWEEN = f"{CLOSE}\n{OPEN}"  # an ordinary token
CALLS = ("[calls]", OPEN, '{"name": "add", "arguments": ', '{"a": 1}}')
CALLS += (BETWEEN, '{"name": "sub", "arguments": ', '{"a": 2}}', CLOSE, "</s>")
CHAINS = (CALLS, ("[text]", "<|system|>", "well", CLOSE))
USER = {"role": "user", "content": "x"}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("add", "sub")]
ADD, SUB = ("add", '{"a": 1}'), ("sub", '{"a": 2}')


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chains")
    write_chain_model(folder / "model", CHAINS, (OPEN, CLOSE))
    compile_tiny(folder / "model", folder / "art", **ONE_BUCKET)
    return folder / "art"


@pytest.fixture(scope="module")
def server(chains: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(chains, tmp_path_factory.mktemp("server") / "log")
    try:
        yield server.ready()
    finally:
        server.close()


def body(start: str, **more: Any) -> dict[str, Any]:
    return {
        "messages": [USER],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 20,
        "chat_template_kwargs": {"start": start},
        **more,
    }


def ask(server: Server, start: str, **more: Any) -> tuple[list[tuple[str, str]], str, str]:
    """Calls, content and finish reason, which are the same whole and streamed."""
    answer = server.post("/v1/chat/completions", body(start, **more))
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or []]
    content = choice["message"]["content"] or ""
    text = server.post("/v1/chat/completions", {**body(start, **more), "stream": True}).text
    events = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n")[:-2]]
    deltas = [e["choices"][0]["delta"] for e in events]
    streamed: list[tuple[str, str]] = []
    for piece in (p for d in deltas for p in d.get("tool_calls") or []):
        if piece["index"] == len(streamed):
            streamed.append((piece["function"]["name"], ""))
        name, arguments = streamed[piece["index"]]
        streamed[piece["index"]] = (name, arguments + piece["function"]["arguments"])
    assert streamed == calls
    assert "".join(d.get("content") or "" for d in deltas) == content
    reason: str = choice["finish_reason"]
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == reason
    return calls, content, reason


def test_calls_are_read(server: Server) -> None:
    assert ask(server, "[calls]") == ([ADD, SUB], "", "tool_calls")
    assert ask(server, "[calls]", skip_special_tokens=False) == ([ADD, SUB], "", "tool_calls")


def test_one_call_at_most(server: Server) -> None:
    assert ask(server, "[calls]", parallel_tool_calls=False) == ([ADD], "", "tool_calls")
    assert ask(server, "[calls]", parallel_tool_calls=True) == ([ADD, SUB], "", "tool_calls")


def test_content_has_no_tags(server: Server) -> None:
    assert ask(server, "[text]") == ([], "well", "stop")
    assert ask(server, "[text]", tools=[]) == ([], "well", "stop")
    shown = ask(server, "[text]", skip_special_tokens=False)[1]
    assert shown == f"<|system|>well{CLOSE}"
    other = [{"type": "function", "function": {"name": "other"}}]
    content = ask(server, "[calls]", tools=other)[1]
    assert content.startswith(f"{CALLS[2]}{CALLS[3]}{BETWEEN}"[:30])
    assert content.endswith("}}")


def test_without_calls(server: Server) -> None:
    """`none` leaves the text as it is, without special tokens."""
    calls, content, reason = ask(server, "[calls]", tool_choice="none")
    assert (calls, reason) == ([], "stop")
    assert content == "".join(CALLS[2:-2])


def test_tokens_are_as_without_tools(server: Server) -> None:
    more = {"return_token_ids": True, "logprobs": True}
    first, second = (
        server.post("/v1/chat/completions", body("[calls]", tool_choice=choice, **more)).json()["choices"][0]
        for choice in ("auto", "none")
    )
    assert first["token_ids"] == second["token_ids"]
    assert first["logprobs"] == second["logprobs"]
    tokens = [entry["token"] for entry in first["logprobs"]["content"]]
    assert tokens == list(CALLS[1:])


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        ([CLOSE], ([ADD], "", "tool_calls")),  # the ordinary token begins with it
        (["_call"], ([ADD], "</tool", "tool_calls")),  # in the ordinary token, not in the special one before
        ([OPEN], ([], "", "stop")),
        (['"sub"'], ([ADD], '{"name": ', "tool_calls")),
        (["never"], ([ADD, SUB], "", "tool_calls")),
    ],
)
def test_stop_strings(server: Server, stop: list[str], wanted: Any) -> None:
    assert ask(server, "[calls]", stop=stop) == wanted


def test_only_some_tools(server: Server) -> None:
    def allow(mode: str, *names: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    calls, content, _ = ask(server, "[calls]", tool_choice=allow("auto", "add"))
    assert calls == [ADD]
    assert '"sub"' in content
    tokens = [
        server.post("/v1/chat/completions", body("[text]", tool_choice=choice)).json()["usage"]["prompt_tokens"]
        for choice in (allow("auto", "add"), allow("auto", "add", "sub"), "auto")
    ]
    assert tokens[0] + len("sub ") == tokens[1] == tokens[2]
    (call,), _, _ = ask(server, "[text]", tool_choice=allow("required", "sub"), max_tokens=60)
    assert call[0] == "sub"
    for bad in (
        allow("auto", "other"),
        allow("auto"),
        {"type": "allowed_tools"},
        {**allow("auto"), "allowed_tools": {"mode": "x"}},
    ):
        answer = server.post("/v1/chat/completions", body("[text]", tool_choice=bad))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tool_choice")


def test_strict_functions_warn_where_nothing_forces_them(server: Server) -> None:
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    answer = server.post("/v1/chat/completions", body("[text]", tools=tools))
    assert "strict" in answer.headers["x-inferir-warning"]
    forced = server.post("/v1/chat/completions", body("[text]", tools=tools, tool_choice="required", max_tokens=60))
    assert "x-inferir-warning" not in forced.headers


def test_tools_that_may_not_be_called(server: Server, chains: Path, tmp_path: Path) -> None:
    """They stay in the prompt, unless the server leaves them out."""
    plain = body("[text]", tools=[])
    without = Server(chains, tmp_path / "log", "--exclude-tools-when-tool-choice-none")
    try:
        without.ready()
        counts = {
            (which, name): where.post("/v1/chat/completions", request).json()["usage"]["prompt_tokens"]
            for which, where in (("with", server), ("without", without))
            for name, request in (
                ("plain", plain),
                ("none", body("[text]", tool_choice="none")),
                ("auto", body("[text]")),
            )
        }
    finally:
        without.close()
    assert counts["with", "none"] == counts["with", "auto"] == counts["with", "plain"] + len("add sub ")
    assert counts["without", "none"] == counts["without", "plain"] == counts["with", "plain"]
    assert counts["without", "auto"] == counts["with", "auto"]
