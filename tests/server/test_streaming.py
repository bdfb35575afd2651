"""Streams against whole answers: stop strings, characters of several tokens, usage, several answers, failures."""

from __future__ import annotations

import concurrent.futures
import json
from collections import defaultdict
from typing import Any

import pytest
from serving import Server

LETTERS = "ABCDEFGHIJKLMNOP"
WORDS = "one two END three"
MIXED = "삼겹살 🍖 世界 👩‍👩‍👧 é"  # Hangul, Han, an emoji of several code points, a letter of two bytes
USER = {"role": "user", "content": "hi"}


def lines(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, each decoded strictly."""
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        text = b"".join(response.iter_bytes())
    data = [e.removeprefix(b"data: ").decode("utf-8") for e in text.split(b"\n\n") if e]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


def joined(events: list[Any]) -> tuple[dict[int, str], dict[int, list[Any]]]:
    """Text and (finish, stop) reasons by index; the stream must end properly."""
    assert events[-1] == "[DONE]"
    text: dict[int, str] = defaultdict(str)
    reasons: dict[int, list[Any]] = defaultdict(list)
    for event in events[:-1]:
        for c in event["choices"]:
            text[c["index"]] += c["text"] if "text" in c else c["delta"].get("content") or ""
            if c["finish_reason"] is not None:
                reasons[c["index"]].append((c["finish_reason"], c["stop_reason"]))
    return text, reasons


def forced(text: str, **body: Any) -> dict[str, Any]:
    """A request whose answer is `text`."""
    return {"prompt": "x", "max_tokens": 80, "structured_outputs": {"choice": [text]}, "temperature": 0, **body}


def both(server: Server, body: dict[str, Any]) -> tuple[str, Any]:
    """Text and stop reason of a request's only answer, which are the same streamed and whole."""
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    choice, usage = answer.json()["choices"][0], answer.json()["usage"]
    events = lines(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    text, reasons = joined(events)
    assert text == {0: choice["text"]}
    assert reasons == {0: [(choice["finish_reason"], choice["stop_reason"])]}
    assert events[-2]["usage"] == usage
    return choice["text"], choice["stop_reason"]


@pytest.mark.parametrize(
    ("text", "stop", "kept", "reason"),
    [
        (LETTERS, ["DEFGHIJ"], "ABC", "DEFGHIJ"),
        (LETTERS, ["DEFX"], LETTERS, None),
        (LETTERS, ["CD", "DEF"], "AB", "CD"),
        (WORDS, ["END"], "one two ", "END"),
        (WORDS, ["wo E"], "one t", "wo E"),
        (WORDS, "three", "one two END ", "three"),
        (MIXED, ["世"], "삼겹살 🍖 ", "世"),
        (MIXED, None, MIXED, None),
    ],
)
def test_stop_strings(server: Server, text: str, stop: Any, kept: str, reason: str | None) -> None:
    assert both(server, forced(text, stop=stop)) == (kept, reason)
    if reason is not None:
        assert both(server, forced(text, stop=stop, include_stop_str_in_output=True)) == (kept + reason, reason)


def test_usage_counts_generated_tokens(server: Server) -> None:
    """The tokens of the stop string were generated too, though its text is left out: one token per byte here."""
    answer = server.post("/v1/completions", forced(WORDS, stop=["END"])).json()
    assert answer["usage"]["completion_tokens"] == len("one two END")


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        ("", 400),
        ([""], 400),
        (["", "x"], 400),
        ([1], 400),
        ([], 200),
        (None, 200),
        ([f"~{i}~" for i in range(17)], 200),
    ],
)
def test_stop_strings_that_are_none(server: Server, stop: Any, status: int) -> None:
    answer = server.complete(stop=stop, max_tokens=8, ignore_eos=True)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["usage"]["completion_tokens"] == 8
    else:
        assert answer.json()["error"]["param"] == "stop"


@pytest.mark.parametrize("streams", [1, 3])
def test_characters_of_several_tokens(server: Server, streams: int) -> None:
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        tasks = [pool.submit(lines, server, "/v1/completions", forced(MIXED)) for _ in range(streams)]
        results = [t.result() for t in tasks]
    for events in results:
        pieces = [c["text"] for e in events[:-1] for c in e["choices"]]
        assert "".join(pieces) == MIXED
        assert not any("\ufffd" in p for p in pieces)
    body = {**forced(MIXED), "messages": [USER], "logprobs": True, "top_logprobs": 1}
    del body["prompt"]
    (whole,) = server.post("/v1/chat/completions", body).json()["choices"]
    chunks = [e["choices"][0] for e in lines(server, "/v1/chat/completions", body)[:-1]]
    for content in (
        whole["logprobs"]["content"],
        [x for c in chunks if c["logprobs"] for x in c["logprobs"]["content"]],
    ):
        raw = bytes(b for entry in content for b in entry["bytes"])
        assert raw.removesuffix(b"</s>").decode() == MIXED
    assert whole["message"]["content"] == MIXED


def test_tokens_of_completions_join_to_the_text(server: Server) -> None:
    """A token that ends inside a character is empty, and the one that completes it has it whole; offsets follow."""
    body = forced(MIXED, logprobs=3, echo=True)
    (choice,) = server.post("/v1/completions", body).json()["choices"]
    assert choice["text"] == "x" + MIXED
    streamed = [e["choices"][0]["logprobs"] for e in lines(server, "/v1/completions", body)[:-1]]
    fields = {name: [x for part in streamed if part for x in part[name]] for name in choice["logprobs"]}
    assert fields == choice["logprobs"]
    tokens, offsets = fields["tokens"], fields["text_offset"]
    assert "".join(tokens).removesuffix("</s>") == choice["text"]
    assert offsets == [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    assert len(fields["token_logprobs"]) == len(fields["top_logprobs"]) == len(tokens) > len(MIXED)
    for token, value, top in zip(tokens[1:], fields["token_logprobs"][1:], fields["top_logprobs"][1:], strict=True):
        assert top[token] == value
        assert 3 <= len(top) <= 4


def test_usage_comes_once(server: Server) -> None:
    body = {"prompt": "usage", "max_tokens": 7, "n": 2, "temperature": 0, "ignore_eos": True, "stop": ["EF"]}
    body |= {"structured_outputs": {"choice": [LETTERS]}}
    whole = server.post("/v1/completions", body).json()
    assert {c["stop_reason"] for c in whole["choices"]} == {"EF"}
    events = lines(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert (events[-2]["choices"], events[-2]["usage"]) == ([], whole["usage"])
    assert all(e["usage"] is None and e["choices"] for e in events[:-2])
    assert all("usage" not in e for e in lines(server, "/v1/completions", body)[:-1])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_several_answers(server: Server, path: str) -> None:
    body = {"n": 3, "seed": 1, "temperature": 1, "max_tokens": 6, "stop": "e"}
    body |= {"prompt": "x"} if path == "/v1/completions" else {"messages": [USER]}
    whole = server.post(path, body).json()
    events = lines(server, path, {**body, "stream_options": {"include_usage": True}})
    text, reasons = joined(events)
    assert [text[i] for i in range(3)] == [
        c["text"] if "text" in c else c["message"]["content"] for c in whole["choices"]
    ]
    assert [reasons[i] for i in range(3)] == [[(c["finish_reason"], c["stop_reason"])] for c in whole["choices"]]
    assert len(set(text.values())) > 1
    assert events[-2]["usage"] == whole["usage"]
    if path == "/v1/chat/completions":
        roles = [c["index"] for e in events[:-1] for c in e["choices"] if "role" in c["delta"]]
        assert sorted(roles) == [0, 1, 2]


def test_a_failure_within_a_stream(server: Server) -> None:
    """A grammar allows one text, whose end is a bad word: the second token cannot be drawn."""
    free = {"prompt": "other", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    expected = server.post("/v1/completions", free).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        others = [pool.submit(lines, server, "/v1/completions", free) for _ in range(2)]
        failing = forced("ab", bad_words=["ab"])
        events = lines(server, "/v1/completions", failing)
        whole = server.post("/v1/completions", failing)
        assert [joined(o.result())[0] for o in others] == [{0: expected}] * 2
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["a"]
    assert not any(c["finish_reason"] for e in events[:-1] for c in e["choices"])
    assert whole.status_code == 400
    for error in (events[-1]["error"], whole.json()["error"]):
        assert error["type"] == "invalid_request_error"
        assert "no token can follow" in error["message"]
    server.idle()
