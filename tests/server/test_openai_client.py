"""The official Python client: completions and chat, streamed and not."""

from __future__ import annotations

import concurrent.futures
from collections import defaultdict
from typing import Any

import openai
import pytest
from serving import Server

USER = {"role": "user", "content": "say something"}
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 9},
    {"temperature": 1, "seed": 5, "max_tokens": 9},
    {"temperature": 1, "seed": 1, "max_tokens": 12, "n": 3, "stop": ["e", "a"]},
]


def completion(client: openai.OpenAI, prompt: Any = "once upon", **params: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, **params)


def chat(client: openai.OpenAI, **params: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=[USER], **params)


def joined(stream: Any) -> tuple[dict[int, str], dict[int, list[str]], Any, list[Any]]:
    """Text and finish reasons by index, usage, and all chunks."""
    text: dict[int, str] = defaultdict(str)
    reasons: dict[int, list[str]] = defaultdict(list)
    usage = None
    chunks = list(stream)
    for chunk in chunks:
        usage = chunk.usage or usage
        for c in chunk.choices:
            text[c.index] += (c.delta.content if hasattr(c, "delta") else c.text) or ""
            if c.finish_reason:
                reasons[c.index].append(c.finish_reason)
    return text, reasons, usage, chunks


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert model.model_extra is not None
    assert model.model_extra["root"]


@pytest.mark.parametrize("params", PARAMS)
def test_streamed_completions_equal_whole_ones(client: openai.OpenAI, params: dict[str, Any]) -> None:
    whole = completion(client, **params)
    text, reasons, usage, chunks = joined(
        completion(client, **params, stream=True, stream_options={"include_usage": True})
    )
    assert [text[c.index] for c in whole.choices] == [c.text for c in whole.choices]
    assert [reasons[c.index] for c in whole.choices] == [[c.finish_reason] for c in whole.choices]
    assert len(whole.choices) == params.get("n", 1)
    assert usage == whole.usage
    assert usage.prompt_tokens == len("once upon")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []


@pytest.mark.parametrize("params", PARAMS)
def test_streamed_chats_equal_whole_ones(client: openai.OpenAI, params: dict[str, Any]) -> None:
    whole = chat(client, **params)
    text, reasons, usage, chunks = joined(chat(client, **params, stream=True, stream_options={"include_usage": True}))
    assert [text[c.index] for c in whole.choices] == [c.message.content for c in whole.choices]
    assert [reasons[c.index] for c in whole.choices] == [[c.finish_reason] for c in whole.choices]
    assert usage == whole.usage
    roles = [c.choices[0].index for c in chunks if c.choices and c.choices[0].delta.role]
    assert sorted(roles) == list(range(params.get("n", 1)))
    assert whole.choices[0].message.role == "assistant"


def test_usage_without_being_asked_for(client: openai.OpenAI) -> None:
    assert joined(completion(client, max_tokens=3, stream=True))[2] is None


def test_continuous_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(completion(client, max_tokens=6, temperature=0, stream=True, stream_options=options))
    counts = [c.usage.completion_tokens for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert chunks[0].usage.prompt_tokens == len("once upon")


def test_seeds_repeat_and_differ(client: openai.OpenAI) -> None:
    a, b, c = (completion(client, seed=s, temperature=1, max_tokens=16).choices[0].text for s in (7, 7, 8))
    assert a == b != c
    whole = completion(client, seed=7, temperature=1, max_tokens=16, n=2)
    assert whole.choices[0].text == a
    assert len({x.text for x in whole.choices}) == 2


def test_stop_strings(client: openai.OpenAI) -> None:
    text = completion(client, temperature=0, max_tokens=20).choices[0].text
    stop = text[5:8]
    got = completion(client, temperature=0, max_tokens=20, stop=stop).choices[0]
    assert got.text == text[: text.index(stop)]
    assert got.finish_reason == "stop"
    assert got.stop_reason == stop
    kept = completion(client, temperature=0, max_tokens=20, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == text[: text.index(stop) + len(stop)]


def test_prompt_forms_agree(client: openai.OpenAI, server: Server) -> None:
    ids = server.post("/tokenize", {"prompt": "once upon"}).json()["tokens"]
    text = completion(client, temperature=0, max_tokens=5).choices[0].text
    for prompt in (["once upon"], ids, [ids]):
        assert [c.text for c in completion(client, prompt, temperature=0, max_tokens=5).choices] == [text]
    many = completion(client, ["once upon", "b", "once upon"], temperature=0, max_tokens=5, n=2)
    assert [c.index for c in many.choices] == [*range(6)]
    assert [many.choices[i].text for i in (0, 1, 4, 5)] == [text] * 4
    assert many.usage.prompt_tokens == 2 * len("once upon") + 1
    assert many.usage.completion_tokens == 30


def test_echo(client: openai.OpenAI) -> None:
    plain = completion(client, temperature=0, max_tokens=5).choices[0].text
    assert completion(client, temperature=0, max_tokens=5, echo=True).choices[0].text == "once upon" + plain
    text, *_ = joined(completion(client, temperature=0, max_tokens=5, echo=True, stream=True, n=2))
    assert text == {0: "once upon" + plain, 1: "once upon" + plain}


def test_token_ids(client: openai.OpenAI) -> None:
    choice = completion(client, "hi", temperature=0, max_tokens=5, extra_body={"return_token_ids": True}).choices[0]
    assert len(choice.token_ids) == 5
    assert len(choice.prompt_token_ids) == 2
    body = {"return_token_ids": True}
    chunks = list(completion(client, "hi", temperature=0, max_tokens=5, stream=True, extra_body=body))
    assert [i for c in chunks for i in c.choices[0].token_ids] == choice.token_ids


def test_truncated_prompts(client: openai.OpenAI) -> None:
    body = {"truncate_prompt_tokens": 4}
    cut = completion(client, temperature=0, max_tokens=5, extra_body=body)
    assert cut.usage.prompt_tokens == 4
    assert cut.choices[0].text == completion(client, "upon", temperature=0, max_tokens=5).choices[0].text


def test_answers_do_not_depend_on_others(client: openai.OpenAI) -> None:
    def one(i: int) -> str:
        text: str = completion(client, f"story {i % 5}", temperature=1, seed=i % 5, max_tokens=20).choices[0].text
        return text

    alone = [one(i) for i in range(5)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(40))) == alone * 8


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stop": [""]}, "stop"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_errors_have_the_clients_type(client: openai.OpenAI, body: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as e:
        completion(client, **body)
    assert e.value.param == field
    assert field in e.value.message


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="x")
