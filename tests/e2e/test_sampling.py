"""Sampled tokens of a compiled model against a plain sampler in numpy, and what other engines got wrong."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inferir import LLM, SamplingParams
from inferir.ir.errors import RequestError
from inferir.ir.ops.sample import uniform

LOW = -np.inf
EOS = 257
PROMPT = [256, 97, 32, 97, 32, 97, 98, 99]


@pytest.fixture(scope="module")
def llm(tiny_artifact: Path) -> Iterator[LLM]:
    with LLM(tiny_artifact, threads=2) as llm:
        yield llm


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "temperature": 1.0, "seed": 11, **changes})


def bad_tokens(llm: LLM, p: SamplingParams, tokens: list[int]) -> list[int]:
    out = []
    for word in p.bad_words or ():
        for text in (word, " " + word):
            *head, last = llm.engine.tokenizer.encode(text, add_special_tokens=False)  # type: ignore[union-attr]
            if tokens[len(tokens) - len(head) :] == head:
                out.append(last)
    return out


def pick(llm: LLM, logits: np.ndarray, p: SamplingParams, prompt: list[int], outputs: list[int]) -> int:
    """The next token by the documented order, one operation after another."""
    x = logits.astype(np.float32).copy()
    if p.allowed_token_ids is not None:
        keep = np.zeros(len(x), bool)
        keep[list(p.allowed_token_ids)] = True
        x[~keep] = LOW
    for t, b in p.bias.items():
        x[t] += np.float32(b)
    r, counts = np.float32(p.repetition_penalty), Counter(outputs)
    for t in {*prompt, *outputs}:
        x[t] = x[t] / r if x[t] > 0 else x[t] * r
    for t, n in counts.items():
        x[t] -= np.float32(p.presence_penalty + p.frequency_penalty * n)
    x[bad_tokens(llm, p, prompt + outputs)] = LOW
    if len(outputs) < p.min_tokens:
        x[[*p.stop_ids, *([] if p.ignore_eos else [EOS])]] = LOW
    if p.greedy:
        return int(x.argmax())
    x /= np.float32(p.temperature)
    if p.min_p:
        x[x < x.max() + np.log(np.float32(p.min_p))] = LOW
    if p.top_k > 0:
        x[x < np.sort(x)[-min(p.top_k, len(x))]] = LOW
    if p.top_p < 1:
        order = np.argsort(-x, kind="stable")
        mass = np.cumsum(np.exp((x[order] - x.max()).astype(np.float64)))
        x[x < x[order[np.argmax(mass >= p.top_p * mass[-1])]]] = LOW
    u = uniform(torch.tensor([p.seed]), torch.tensor([len(outputs)]), len(x))[0].numpy()
    return int((x - np.log(-np.log(u))).argmax())


CASES = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 5, "temperature": 1.5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1, "temperature": 2.0},
    "filters": {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": -7},
    "no limit": {"top_k": 9999999, "top_p": 1, "seed": 3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 1.5, "frequency_penalty": 0.7, "temperature": 0.0},
    "hot penalties": {"repetition_penalty": 0.8, "frequency_penalty": -0.5, "top_p": 0.95},
    "bias": {"logit_bias": {"65": 5, 66: 5.5, "67": -100}, "temperature": 0.7},
    "allowed": {"allowed_token_ids": [65, 66, 67, 97, 98], "top_k": 3},
    "bad words": {"bad_words": ["A", "BA"], "allowed_token_ids": [65, 66, 32], "temperature": 5.0},
    "min_tokens": {"min_tokens": 4, "logit_bias": {EOS: 100}, "ignore_eos": False},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "logit_bias": {70: 3.0},
        "allowed_token_ids": list(range(32, 130)),
        "bad_words": ["a"],
        "top_k": 30,
        "top_p": 0.8,
        "min_p": 0.01,
        "temperature": 0.9,
    },
}


def test_mixed_rows_equal_a_plain_sampler_and_their_solo_runs(llm: LLM) -> None:
    """Greedy, random, filtered and edited rows share every step."""
    wanted = [params(**c) for c in CASES.values()]
    together = llm.generate([PROMPT] * len(wanted), wanted)
    for name, p, answer in zip(CASES, wanted, together, strict=True):
        outputs = list(answer.token_ids)
        (logits,) = llm.logits([PROMPT + outputs])
        for i, token in enumerate(outputs):
            row = logits[len(PROMPT) - 1 + i][: llm.engine.limits.vocab_size]
            assert pick(llm, row, p, PROMPT, outputs[:i]) == token, (name, i)
        assert llm.generate([PROMPT], p)[0].token_ids == answer.token_ids, name


def test_no_limit_has_several_spellings(llm: LLM) -> None:
    """0, -1, absent and more than the vocabulary all mean that top-k is off."""
    answers = [
        llm.generate([PROMPT], params(**k))[0].token_ids for k in ({}, {"top_k": 0}, {"top_k": -1}, {"top_k": 261})
    ]
    assert len(set(map(tuple, answers))) == 1


def test_at_least_min_tokens_come_before_the_end(llm: LLM) -> None:
    """An end that the bias makes certain comes at once without, and right after 4 tokens with min_tokens 4."""
    certain = {"logit_bias": {EOS: 100}, "ignore_eos": False, "temperature": 0.0, "max_tokens": 10}
    for least in (0, 1, 4):
        (answer,) = llm.generate([PROMPT], params(**certain, min_tokens=least))
        assert len(answer.token_ids) == least + 1
        assert [t == EOS for t in answer.token_ids] == [False] * least + [True]
        assert answer.finish_reason == "stop"


def test_stop_strings_wait_for_min_tokens(llm: LLM) -> None:
    free = llm.generate([PROMPT], params(allowed_token_ids=[36, 37], logit_bias={36: 3}))[0]
    text = free.text[0]
    early = llm.generate([PROMPT], params(allowed_token_ids=[36, 37], logit_bias={36: 3}, stop=text))[0]
    late = llm.generate([PROMPT], params(allowed_token_ids=[36, 37], logit_bias={36: 3}, stop=text, min_tokens=4))[0]
    assert len(early.token_ids) == 1
    assert len(late.token_ids) > 4
    assert late.token_ids == free.token_ids[: len(late.token_ids)]


def test_only_allowed_tokens_come_out(llm: LLM) -> None:
    answer = llm.generate([PROMPT], params(allowed_token_ids=[70], temperature=0.0, max_tokens=5))[0]
    assert list(answer.token_ids) == [70] * 5
    only_end = llm.generate([PROMPT], params(allowed_token_ids=[EOS], ignore_eos=False))[0]
    assert (list(only_end.token_ids), only_end.finish_reason) == ([EOS], "stop")
    letter = llm.engine.tokenizer.decode([70])  # type: ignore[union-attr]
    for refused in ({"allowed_token_ids": [70], "bad_words": [letter]}, {"allowed_token_ids": [10**9]}):
        with pytest.raises(RequestError, match=r"bad_words|allowed_token_ids"):
            llm.generate([PROMPT], params(**refused))


def test_penalties_do_not_count_the_prompt_or_neighbours(llm: LLM) -> None:
    """Presence and frequency of a first token are nothing, however often the prompt has it."""
    first = llm.generate([PROMPT], params(temperature=0.0, max_tokens=1))[0].token_ids
    for strong in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        p = params(temperature=0.0, max_tokens=1, **strong)
        assert llm.generate([PROMPT], p)[0].token_ids == first
    p = params(temperature=0.0, repetition_penalty=1.3, presence_penalty=1.5, frequency_penalty=0.7)
    alone = llm.generate([PROMPT], p)[0].token_ids
    beside = llm.generate([PROMPT, [256, 97] * 20, PROMPT, [1]], [params(), p, p, params(temperature=0)])
    assert beside[2].token_ids == alone


def test_seeds_decide_alone(llm: LLM) -> None:
    one = llm.generate([PROMPT] * 3, [params(seed=s, max_tokens=40) for s in (1, 2, 1)])
    assert one[0].token_ids == one[2].token_ids != one[1].token_ids
