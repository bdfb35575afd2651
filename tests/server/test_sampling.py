"""Fields of sampling, log-probabilities and structured output, through HTTP."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import openai
import pytest
from serving import Server

USER = {"role": "user", "content": "say something"}


def text(server: Server, **body: Any) -> str:
    answer = server.complete(max_tokens=12, ignore_eos=True, **body)
    assert answer.status_code == 200, answer.text
    out: str = answer.json()["choices"][0]["text"]
    return out


def test_log_probabilities_of_completions(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=6,
            temperature=0,
            logprobs=3,
            extra_body={"ignore_eos": True},
            **more,
        )

    choice = ask().choices[0]
    given = choice.logprobs
    assert len(given.tokens) == len(given.token_logprobs) == len(given.top_logprobs) == 6
    assert given.text_offset[0] == 0
    for value, top in zip(given.token_logprobs, given.top_logprobs, strict=True):
        assert value == max(top.values()) <= 0
        assert math.fsum(math.exp(v) for v in top.values()) <= 1 + 1e-9
    chunks = [c.choices[0].logprobs for c in ask(stream=True) if c.choices and c.choices[0].logprobs]
    assert [v for c in chunks for v in c.token_logprobs] == given.token_logprobs
    echoed = ask(echo=True).choices[0]
    assert "".join(echoed.logprobs.tokens[:5]) == "hello"
    assert echoed.logprobs.token_logprobs[0] is None
    assert echoed.logprobs.token_logprobs[5:] == given.token_logprobs
    assert echoed.logprobs.text_offset[:5] == [0, 1, 2, 3, 4]


def test_log_probabilities_of_chats(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return client.chat.completions.create(
            model="tiny", messages=[USER], max_tokens=6, temperature=0, logprobs=True, top_logprobs=2, **more
        )

    whole = ask().choices[0]
    content = whole.logprobs.content
    assert [len(c.top_logprobs) for c in content] == [2] * len(content)
    assert all(c.token == c.top_logprobs[0].token for c in content)
    joined = bytes(b for c in content for b in c.bytes).decode("utf-8", "replace")
    assert joined.startswith(whole.message.content)
    chunks = [c.choices[0].logprobs for c in ask(stream=True) if c.choices and c.choices[0].logprobs]
    assert [x.logprob for c in chunks for x in c.content] == [c.logprob for c in content]


def test_prompt_log_probabilities(server: Server) -> None:
    given = server.complete(prompt="abc", prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"]
    assert given[0] is None
    assert [any(e["decoded_token"] == c for e in g.values()) for g, c in zip(given[1:], "bc", strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize(
    "body",
    [
        {"top_k": 1, "temperature": 1},
        {"top_p": 1e-6, "temperature": 1},
        {"min_p": 1.0, "temperature": 1},
    ],
)
def test_narrow_filters_are_greedy(server: Server, body: dict[str, Any]) -> None:
    assert text(server, **body) == text(server)


def test_rules_on_tokens(server: Server) -> None:
    assert text(server, logit_bias={"65": 100}) == "b" * 12
    got = server.complete(max_tokens=8, allowed_token_ids=[34, 35], return_token_ids=True).json()["choices"][0]
    assert set(got["token_ids"]) <= {34, 35}
    assert len(set(text(server, logit_bias={"65": 3, "66": 3}, frequency_penalty=2.0, presence_penalty=2.0))) > 1
    assert server.complete(allowed_token_ids=[10**6]).status_code == 400


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"structured_outputs": {"regex": "[ab]{4}c"}}, "[ab]{4}c"),
        ({"structured_outputs": {"grammar": 'root ::= "x" "y"'}}, "xy"),
    ],
)
def test_structured_text(server: Server, wanted: dict[str, Any], pattern: str) -> None:
    for more in ({"temperature": 0}, {"temperature": 1, "seed": 3}):
        answer = server.complete(**{"max_tokens": 40, **wanted, **more})
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"])
    assert server.talk(USER, **{"max_tokens": 40, **wanted}).status_code == 200


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    described = {"name": "x", "schema": schema, "strict": True}  # closes the object
    answer = client.chat.completions.create(
        model="tiny",
        messages=[USER],  # type: ignore[list-item]
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": described},  # type: ignore[arg-type, typeddict-item]
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert json.loads(content)["a"] in (1, 2)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/x"}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_structures_that_cannot_be_had(server: Server, body: dict[str, Any], field: str, stream: bool) -> None:
    answer = server.complete(**body, stream=stream)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
