"""Biases, bans and penalties of a request: the edits after every token, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_requests import add_request

from inferir.ir.contract.step_inputs import mask_words
from inferir.ir.errors import RequestError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.sampling.logit_rules import LogitRules, RowEdits, compile_rules
from inferir.runtime.sampling.sampling_params import SamplingParams

VOCAB = 100
LOW = float("-inf")


class Words:
    """A tokenizer of one token per letter, 1 for a space; "th" is one token, 50."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        out = [0] if add_special_tokens else []
        for piece in text.replace("th", "\0"):
            out.append({" ": 1, "\0": 50}.get(piece, ord(piece) - 95))
        return out


def compiled(eos: tuple[int, ...] = (7,), **params: Any) -> LogitRules | None:
    return compile_rules(SamplingParams(**params), VOCAB, eos, Words())  # type: ignore[arg-type]


def rules(eos: tuple[int, ...] = (7,), **params: Any) -> LogitRules:
    found = compiled(eos, **params)
    assert found is not None
    return found


def edited(edits: RowEdits, row: np.ndarray) -> np.ndarray:
    """The row after its edits, in the order that the kernel applies them."""
    inputs = {"edit_ids": np.full(400, 99, np.int32)}
    inputs |= {n: np.full(400, np.nan, np.float32) for n in ("edit_bias", "edit_multiplier", "edit_offset")}
    count, out = edits.write(inputs, 10), row.copy()
    assert (inputs["edit_ids"][[9, 10 + count]] == 99).all()
    for e in range(10, 10 + count):
        x = out[inputs["edit_ids"][e]] + inputs["edit_bias"][e]
        x = x / inputs["edit_multiplier"][e] if x > 0 else x * inputs["edit_multiplier"][e]
        out[inputs["edit_ids"][e]] = x - inputs["edit_offset"][e]
    return out


@pytest.mark.parametrize("seed", range(6))
def test_penalties_follow_the_counts(seed: int) -> None:
    """Presence and frequency count the output only, repetition the prompt too; after a preemption as before."""
    rng = np.random.default_rng(seed)
    prompt, outputs = rng.integers(0, 90, 30).tolist(), rng.integers(0, 90, 80).tolist()
    params = {"presence_penalty": 1.5, "frequency_penalty": -0.75, "repetition_penalty": 1.25, "logit_bias": {3: 2.0}}
    edits = RowEdits(rules(**params), prompt, [])
    row = rng.standard_normal(VOCAB).astype(np.float32)
    for i, token in enumerate([*outputs, None]):
        want, counts = row.astype(np.float64), Counter(outputs[:i])
        want[3] += 2
        for t in {*prompt, *counts}:
            want[t] = want[t] / 1.25 if want[t] > 0 else want[t] * 1.25
        for t, n in counts.items():
            want[t] -= 1.5 - 0.75 * n
        np.testing.assert_allclose(edited(edits, row), want, rtol=1e-5, atol=1e-5)
        again = RowEdits(rules(**params), prompt, outputs[:i])
        np.testing.assert_array_equal(edited(again, row), edited(edits, row))
        if token is not None:
            edits.append(token)


def test_one_penalty_alone() -> None:
    row = np.ones(VOCAB, np.float32)
    for params, value in (
        ({"presence_penalty": 0.5}, 0.5),
        ({"frequency_penalty": 0.25}, 0.5),
        ({"repetition_penalty": 4.0}, 0.25),
    ):
        out = edited(RowEdits(rules(**params), [8, 8], [9, 9]), row)
        assert out[9] == value
        assert out[8] == (0.25 if "repetition_penalty" in params else 1.0)
        assert (np.delete(out, [8, 9]) == 1).all()


def test_ends_are_banned_until_enough_tokens_are_there() -> None:
    edits = RowEdits(rules((7, 8), min_tokens=2, stop_token_ids=[20, 10**9], logit_bias={7: 100}), [1, 2, 3], [])
    for token, banned in ((5, [7, 8, 20]), (5, [7, 8, 20]), (None, [])):
        out = edited(edits, np.zeros(VOCAB, np.float32))
        assert np.flatnonzero(out == LOW).tolist() == banned
        if token is not None:
            edits.append(token)
    assert out[7] == 100
    assert rules(min_tokens=2, stop_token_ids=[20], ignore_eos=True).endings == (20,)
    assert compiled(min_tokens=2, ignore_eos=True) is None


def test_the_last_token_of_a_bad_word_is_banned_after_the_others() -> None:
    """ "ab" is [2, 3] and, after a space, [1, 2, 3]; its beginning may lie in the prompt."""

    def banned(prompt: list[int], outputs: list[int]) -> list[int]:
        out = edited(RowEdits(rules(bad_words=["ab", "c", "dth"]), prompt, outputs), np.zeros(VOCAB, np.float32))
        return np.flatnonzero(out == LOW).tolist()

    assert banned([9], []) == [4]
    assert banned([2], []) == [3, 4]
    assert banned([9], [1, 2]) == [3, 4]
    assert banned([1], [2]) == [3, 4]
    assert banned([2], [9]) == [4]
    assert banned([], [5]) == [4, 50]
    assert RowEdits(rules(bad_words=["c"]), [], [])


def test_a_bad_word_of_one_token_is_banned_alone_and_after_a_space() -> None:
    assert dict(rules(bad_words=["c"]).bias) == {4: LOW}
    assert rules(bad_words=["c"]).phrases == (((1,), 4),)


def test_allowed_ids_become_bits() -> None:
    mask = rules(allowed_token_ids=[0, 31, 32, 99]).allowed
    assert mask is not None
    assert mask.dtype == np.int32
    assert mask.shape == (mask_words(VOCAB),)
    assert [i for i in range(128) if mask[i // 32] >> (i % 32) & 1] == [0, 31, 32, 99]
    assert not rules(allowed_token_ids=[5]).edits


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logit_bias", {"logit_bias": {"100": -100}}),
        ("logit_bias", {"logit_bias": {191222: -100}}),
        ("allowed_token_ids", {"allowed_token_ids": [10**9]}),
        ("bad_words", {"allowed_token_ids": [4], "bad_words": ["c"]}),
        ("min_tokens", {"allowed_token_ids": [7], "min_tokens": 1}),
        ("min_tokens", {"allowed_token_ids": [7, 9], "min_tokens": 1, "stop_token_ids": [9]}),
    ],
)
def test_what_cannot_work_is_refused_by_name(field: str, params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=field) as e:
        compiled(**params)
    assert e.value.field == field


def test_bad_words_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="need a tokenizer") as e:
        compile_rules(SamplingParams(bad_words=["x"]), VOCAB, {7}, None)
    assert e.value.field == "bad_words"


def test_a_refused_request_leaves_others_alone(
    make_engine: Callable[..., Engine], reference: Callable[..., Any]
) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=8)
    kept = add_request(engine, [5, 6, 7], params)
    engine.step()
    for bad in ({"logit_bias": {"191222": -100}}, {"allowed_token_ids": [10**9]}, {"bad_words": ["x"]}):
        with pytest.raises(RequestError):
            add_request(engine, [5], SamplingParams(**bad))
    while engine.has_unfinished:
        engine.step()
    assert kept.outputs == reference([5, 6, 7], params, 8)


def test_inputs_of_mixed_rows(make_engine: Callable[..., Engine]) -> None:
    """Every row's own values, and nothing left of a request that had the row before."""
    engine = make_engine()
    x = engine.executor.inputs
    wanted = [
        SamplingParams(temperature=0, logit_bias={5: 1.0, 6: 2.0}),
        SamplingParams(top_k=2**40, top_p=0.5, min_p=0.25, seed=9, allowed_token_ids=[1, 40], presence_penalty=1.0),
        SamplingParams(top_k=-1, repetition_penalty=1.5, seed=-4),
    ]
    requests = [add_request(engine, [10, 11, 10], p) for p in wanted]
    engine.step()
    assert x["temperature"][:3].tolist() == [0, 1, 1]
    assert x["top_k"][:3].tolist() == [0, 2**31 - 1, -1]
    assert x["top_p"][:3].tolist() == [1, 0.5, 1]
    assert x["min_p"][:3].tolist() == [0, 0.25, 0]
    assert x["seed"][1:3].tolist() == [9, -4]
    assert x["masked"][:3].tolist() == [0, 1, 0]
    assert (x["bitmask"][1, :2].tolist(), x["bitmask"][1, 2:].any()) == ([2, 1 << 8], False)
    assert x["edit_count"][:3].tolist() == [2, 0, 2]
    begin = x["edit_begin"][:3].tolist()
    assert x["edit_ids"][begin[0] : begin[0] + 2].tolist() == [5, 6]
    assert sorted(x["edit_ids"][begin[2] : begin[2] + 2].tolist()) == [10, 11]
    engine.step()
    assert x["edit_count"][1] == 1
    for r in requests:
        engine.abort(r.id)
    add_request(engine, [10, 11, 10], SamplingParams())
    engine.step()
    assert (x["masked"][0], x["edit_count"][0], x["top_p"][0]) == (0, 0, 1)


def test_a_mask_and_allowed_ids_both_hold(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    add_request(engine, [10], SamplingParams(allowed_token_ids=[1, 40, 90]))
    add_request(engine, [10], SamplingParams())
    engine.step()

    def fill(bits: np.ndarray) -> None:
        bits[:] = [3, 1 << 8, -1, 0]

    for row in (0, 1):
        engine.batch.sampling.constrain(row, fill)
    x = engine.executor.inputs
    assert x["masked"][:2].tolist() == [1, 1]
    assert x["bitmask"][:2].tolist() == [[2, 1 << 8, 1 << 26, 0], [3, 1 << 8, -1, 0]]
