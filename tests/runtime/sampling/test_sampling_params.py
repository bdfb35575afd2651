"""Parameters: what is refused, by name, and how seeds become 32 bits."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from inferir.ir.contract.symbols import EDITS_PER_ROW
from inferir.ir.errors import RequestError
from inferir.runtime.sampling.logit_rules import compile_rules
from inferir.runtime.sampling.sampling_params import MAX_LISTED, SamplingParams, seed_i32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "8"),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", None),
        ("seed", 1.5),
        ("seed", 2**64),
        ("stop", ""),
        ("stop", ["", "x"]),
        ("stop", [1]),
        ("stop", 5),
        ("stop", ["x"] * 65),
        ("stop", "x" * 1025),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", 3),
        ("ignore_eos", 1),
        ("skip_special_tokens", "no"),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("n", None),
        ("top_p", -0.1),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_p", None),
        ("top_k", -2),
        ("top_k", 0.01),
        ("top_k", 40.5),
        ("top_k", True),
        ("top_k", "a"),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("min_tokens", 2.5),
        ("presence_penalty", 2.1),
        ("presence_penalty", "1"),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-300),
        ("stop_token_ids", [5.5]),
        ("logit_bias", {5.5: 1.0}),
        ("top_k", math.inf),
        ("seed", 1e300),
        ("repetition_penalty", math.inf),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {"-1": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1.5: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", {"5": math.nan}),
        ("logit_bias", {"5": 100.5}),
        ("logit_bias", {"5": -(10**400)}),
        ("logit_bias", {"5": None}),
        ("logit_bias", [5]),
        ("logit_bias", dict.fromkeys(range(1001), 1.0)),
        ("bad_words", "x"),
        ("bad_words", [""]),
        ("bad_words", [1]),
        ("bad_words", ["x"] * 1001),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", ["1"]),
        ("allowed_token_ids", 1),
        ("stop_token_ids", list(range(1001))),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", 1.5),
        ("prompt_logprobs", 21),
    ],
)
def test_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as e:
        SamplingParams(**{field: value})
    assert e.value.field == field
    assert "\n" not in str(e.value)


def test_numbers_that_are_integers() -> None:
    given = {"max_tokens": 5.0, "seed": -3.0, "n": 2.0, "top_k": 4e1, "logprobs": 1.0, "prompt_logprobs": 0.0}
    more: dict[str, Any] = {"min_tokens": 2.0, "stop_token_ids": [7.0], "allowed_token_ids": [1, 2.0]}
    params = SamplingParams(**given, **more, logit_bias={3.0: 1.0})  # type: ignore[arg-type]
    read = {name: getattr(params, name) for name in given}
    assert read == given
    ids = (*params.stop_token_ids, *params.allowed_token_ids, *params.bias)  # type: ignore[misc]
    assert ids == (7, 1, 2, 3)
    assert {type(v) for v in (*read.values(), params.min_tokens, *ids)} == {int}


@pytest.mark.parametrize("value", [0, 0.0, 5e-324, 1e-40])
def test_top_p_of_nothing_is_the_smallest_share(value: float) -> None:
    """Kernels compute in float32, in which smaller numbers may be 0, which keeps no token."""
    share = SamplingParams(top_p=value).top_p
    assert share == float(np.finfo(np.float32).tiny)


def test_values_that_switch_a_parameter_off_are_accepted() -> None:
    params = SamplingParams(
        n=1,
        top_p=1,
        top_k=-1,
        min_p=0,
        repetition_penalty=1.0,
        presence_penalty=0,
        frequency_penalty=0.0,
        logprobs=None,
        bad_words=[],
        logit_bias={},
    )
    for limit in (0, -1, 9999999, 2**40):
        assert SamplingParams(top_k=limit).top_k == limit
    assert compile_rules(params, 100, {7}, None) is None


def test_lists_of_one_row_fit_its_edits() -> None:
    assert 4 * MAX_LISTED + 64 <= EDITS_PER_ROW


def test_biases_have_integer_ids() -> None:
    params = SamplingParams(logit_bias={"5": -100, 7: 2, "09": 0.5, 3: 100.0})
    assert dict(params.bias) == {5: -100.0, 7: 2.0, 9: 0.5, 3: 100.0}
    assert not SamplingParams().bias


def test_normal_form() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[3, 3, 5], temperature=0, max_tokens=None)
    assert (params.stop_strings, params.stop_ids, params.greedy) == (("x",), {3, 5}, True)
    assert SamplingParams(stop=[]).stop_strings == SamplingParams(stop=None).stop_strings == ()


def test_parse() -> None:
    params = SamplingParams.parse({"max_tokens": None, "temperature": None, "seed": 3, "stop": ["a"]})
    assert (params.max_tokens, params.temperature, params.seed, params.stop_strings) == (None, 1.0, 3, ("a",))
    with pytest.raises(RequestError, match=r"'temprature'; did you mean temperature\?") as e:
        SamplingParams.parse({"temprature": 0})
    assert e.value.field == "temprature"


def test_seeds_are_32_bits_and_all_bits_count() -> None:
    assert [seed_i32(s) for s in (7, -1, 2**31 - 1)] == [7, -1, 2**31 - 1]
    seeds = [seed_i32(s) for s in (0, 1, 2**31, 2**32, 2**40, 2**63, -5)]
    assert len(set(seeds)) == len(seeds)
    assert all(-(2**31) <= s < 2**31 for s in [*seeds, *(seed_i32(None) for _ in range(20))])
    assert len({seed_i32(None) for _ in range(8)}) == 8


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_tokens": None, "temperature": 0.0},
        {"stop": ["a", "b"], "stop_token_ids": [3, 4.0], "bad_words": ["x"], "logit_bias": {"7": 1, 9: -2.5}},
        {
            "allowed_token_ids": [1, 2],
            "top_p": 0.0,
            "n": 3,
            "seed": 2**63,
            "logprobs": 0,
            "include_stop_str_in_output": True,
        },
    ],
)
def test_checked_parameters_pass_between_processes(given: dict[str, Any]) -> None:
    params = SamplingParams(**given)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(params.fields()))
    assert SamplingParams.checked(sent) == params
    assert len(sent) == len(given)
