"""Parameters of sampling through HTTP, beside other requests, and against the model in transformers."""

from __future__ import annotations

import concurrent.futures
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import MAX_MODEL_LEN, VOCAB
from serving import Server

EOS = 257
OTHER = {"prompt": "beside", "max_tokens": 100, "ignore_eos": True}
Logits = Callable[[list[int]], np.ndarray]


def ids(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


@pytest.fixture
def beside(server: Server) -> Iterator[None]:
    """A greedy request runs during the test, and is answered as it is alone."""
    alone = server.complete(**OTHER).json()["choices"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        task = pool.submit(server.complete, **OTHER)
        yield
        assert task.result().json()["choices"] == alone


@pytest.fixture(scope="module")
def logits(tiny_model: Path) -> Logits:
    """Logits at every position, by transformers."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(tiny_model).eval()

    def compute(tokens: list[int]) -> np.ndarray:
        with torch.inference_mode():
            out: np.ndarray = model(torch.tensor([tokens])).logits[0].float().numpy()
        return out

    return compute


# --- what is refused, while others run --------------------------------------------------------------------------------

BAD = [
    *({"logit_bias": {key: value}} for key, value in [("191222", -100), ("-1", 1), ("a", 1), ("5", "x"), ("5", 1000)]),
    {"logit_bias": {str(i): 1 for i in range(10_000)}},
    *({"prompt": p} for p in ([-1], [VOCAB], [2**31], [2**70], [1.5])),
    {"stop_token_ids": [-1]},
    {"min_tokens": 11, "max_tokens": 10},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [10**9]},
    {"allowed_token_ids": [34], "bad_words": ["C"]},
    *({"top_k": k} for k in (0.01, -2, "a")),
    *({"presence_penalty": v} for v in (2.1, -2.1, "1")),
    *({"frequency_penalty": v} for v in (2.1, -2.1)),
    *({"repetition_penalty": v} for v in (0, -1, 10**400)),
]


@pytest.mark.usefixtures("beside")
def test_refused_by_name(server: Server) -> None:
    for body in BAD:
        answer = server.complete(**body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] in body
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, ["a", ""], [[], [1]]])
def test_empty_prompts(server: Server, prompt: Any) -> None:
    answer = server.complete(prompt=prompt)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert server.get("/health").status_code == 200


def test_empty_conversations(server: Server) -> None:
    assert server.talk().status_code == 400
    assert server.talk({"role": "user", "content": ""}).status_code == 200  # the template writes around it


@pytest.mark.parametrize("max_tokens", [None, 1, 10**6])
@pytest.mark.parametrize("length", [MAX_MODEL_LEN - 1, MAX_MODEL_LEN, MAX_MODEL_LEN + 1, 10 * MAX_MODEL_LEN])
def test_prompts_about_as_long_as_the_context(server: Server, length: int, max_tokens: int | None) -> None:
    answer = server.complete(prompt=[65] * length, max_tokens=max_tokens)
    if length < MAX_MODEL_LEN:
        assert answer.json()["usage"]["completion_tokens"] == 1
        assert answer.json()["choices"][0]["finish_reason"] == "length"
    else:
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert str(length) in message
        assert str(MAX_MODEL_LEN) in message
    talk = server.talk({"role": "user", "content": "A" * length}, max_tokens=max_tokens)
    assert talk.status_code == 400
    assert str(MAX_MODEL_LEN) in talk.json()["error"]["message"]


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_rows_with_and_without_limits(server: Server) -> None:
    """Seeded, greedy and refused requests at the same time: each as it is alone."""
    bodies = [{"temperature": 1, "seed": 5, "top_k": k} for k in (1, 50, 9999999, 0, -1)]
    bodies += [{"temperature": 1, "seed": 5, "top_k": k} for k in (0.01, -2, "a")] + [{}] * 3

    def ask(body: dict[str, Any]) -> tuple[int, Any]:
        answer = server.complete(prompt="rows", max_tokens=20, ignore_eos=True, **body)
        return answer.status_code, answer.json().get("choices")

    alone = [ask(b) for b in bodies]
    assert [status for status, _ in alone] == [200] * 5 + [400] * 3 + [200] * 3
    assert alone[2] == alone[3] == alone[4]
    with concurrent.futures.ThreadPoolExecutor(22) as pool:
        assert list(pool.map(ask, bodies * 2)) == alone * 2


@pytest.mark.usefixtures("beside")
def test_ids_that_end(server: Server) -> None:
    """The end comes at once if a bias makes it certain, and right after min_tokens; an unknown id never comes."""
    certain = {"logit_bias": {EOS: 100}, "max_tokens": 10, "return_token_ids": True}
    assert ids(server.complete(**certain)) == [EOS]
    answer = server.complete(**certain, min_tokens=4)
    assert [t == EOS for t in ids(answer)] == [False] * 4 + [True]
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    plain = {"max_tokens": 10, "ignore_eos": True, "return_token_ids": True}
    free = ids(server.complete(**plain))
    assert ids(server.complete(**plain, stop_token_ids=[10**9])) == free
    first = server.complete(**plain).json()["choices"][0]["text"][0]
    early = ids(server.complete(**plain, stop=first))
    late = ids(server.complete(**plain, stop=first, min_tokens=4))
    assert len(early) == 1
    assert len(late) >= 4
    assert late == free[: len(late)]


def test_only_allowed_tokens_come_out(server: Server) -> None:
    assert ids(server.complete(allowed_token_ids=[34], max_tokens=5, return_token_ids=True)) == [34] * 5
    answer = server.complete(allowed_token_ids=[EOS], return_token_ids=True)
    assert (ids(answer), answer.json()["choices"][0]["finish_reason"]) == ([EOS], "stop")
    hot = {"temperature": 5, "seed": 1, "max_tokens": 20, "return_token_ids": True}
    assert set(ids(server.complete(allowed_token_ids=[34, 35, 36], bad_words=["D"], **hot))) <= {34, 36}


PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 1.5, "frequency_penalty": 0.7}


@pytest.mark.parametrize("names", [[n] for n in PENALTIES] + [[*PENALTIES]], ids=lambda n: "+".join(n))
def test_penalties_equal_a_plain_rule_on_transformers_logits(server: Server, logits: Logits, names: list[str]) -> None:
    """Presence and frequency count the answer only, repetition the prompt too; mates change nothing."""
    prompt = server.post("/tokenize", {"prompt": "a a a a"}).json()["tokens"]
    given = {n: PENALTIES[n] for n in names}
    body = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True, **given}
    expected: list[int] = []
    for _ in range(16):
        row = logits(prompt + expected)[-1].copy()
        for token in {*prompt, *expected}:
            factor = given.get("repetition_penalty", 1.0)
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        for token, count in Counter(expected).items():
            row[token] -= given.get("presence_penalty", 0.0) + count * given.get("frequency_penalty", 0.0)
        expected.append(int(row.argmax()))
    assert ids(server.complete(**body)) == expected
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        mates = [pool.submit(server.complete, prompt="b" * (3 + 9 * i), max_tokens=30, **given) for i in range(7)]
        assert ids(server.complete(**body)) == expected
        assert all(m.result().status_code == 200 for m in mates)


@pytest.mark.parametrize("prompt", ["\n1. Carol has 20", "a 🍖 é", "x"])
def test_scores_of_prompt_and_answer_equal_transformers(server: Server, logits: Logits, prompt: str) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": 3, "max_tokens": 4, "ignore_eos": True}
    (choice,) = server.complete(**body, return_token_ids=True).json()["choices"]
    given, tokens = choice["logprobs"], choice["prompt_token_ids"] + choice["token_ids"]
    rows = logits(tokens).astype(np.float64)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    assert {len(v) for v in given.values()} == {len(tokens)}
    assert given["token_logprobs"][0] is None
    assert given["top_logprobs"][0] is None
    for i, (value, top) in enumerate(zip(given["token_logprobs"], given["top_logprobs"], strict=True)):
        if i:
            assert value == pytest.approx(rows[i - 1, tokens[i]], abs=1e-3)
            assert sorted(top.values())[-3:] == pytest.approx(np.sort(rows[i - 1])[-3:].tolist(), abs=1e-3)
    assert "".join(given["tokens"]) == choice["text"]
    assert given["text_offset"] == [sum(map(len, given["tokens"][:i])) for i in range(len(tokens))]
