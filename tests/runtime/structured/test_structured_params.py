"""`SamplingParams(structured=...)`: checked early, followed by `LLM`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.errors import RequestError
from inferir.runtime.structured import StructuredSpec

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
GBNF = 'root ::= "x" | "yy"'


@pytest.fixture(scope="module")
def llm(tiny_artifact: Path) -> Iterator[LLM]:
    with LLM(tiny_artifact, threads=1) as llm:
        yield llm


def params(structured: Any, **others: Any) -> SamplingParams:
    return SamplingParams(structured=structured, **{"temperature": 1.0, "seed": 1, "max_tokens": 60, **others})


def test_every_kind(llm: LLM) -> None:
    asked: list[Any] = [
        {"json": SCHEMA},
        {"json": json.dumps(SCHEMA)},
        {"choice": ["red", "green"]},
        {"regex": "[ab]{3}"},
        {"grammar": GBNF},
        StructuredSpec("regex", "c{5}"),
        None,
    ]
    outputs = llm.generate(["p"] * len(asked), [params(a) for a in asked])
    texts = [o.text for o in outputs]
    for text in texts[:2]:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert texts[2] in ("red", "green")
    assert re.fullmatch("[ab]{3}", texts[3])
    assert texts[4] in ("x", "yy")
    assert texts[5] == "ccccc"
    assert {o.finish_reason for o in outputs[:-1]} == {"stop"}
    assert texts[-1] == llm.generate("p", params(None))[0].text


def test_a_json_object(llm: LLM) -> None:
    (out,) = llm.generate("p", params({"json_object": True}, logit_bias=dict.fromkeys(llm.tokenize('"}'), 100)))
    assert isinstance(json.loads(out.text), dict)


def test_chat_streams_and_several_answers(llm: LLM) -> None:
    spec = params({"choice": ["one", "two"]}, n=3)
    (out,) = llm.chat([{"role": "user", "content": "hi"}], spec)
    assert {c.text for c in out.outputs} <= {"one", "two"}
    assert "".join(llm.stream("p", replace(spec, n=1))) in ("one", "two")


def test_more_grammars_than_may_wait(llm: LLM) -> None:
    outputs = llm.generate(["p"] * 300, [params({"choice": [f"word{i}"]}, max_tokens=10) for i in range(300)])
    assert [o.text for o in outputs] == [f"word{i}" for i in range(300)]


@pytest.mark.parametrize(
    ("structured", "field"),
    [
        ("x", "structured"),
        ({"json": "{"}, "structured.json"),
        ({"json": {"not": {}}}, "structured.json"),
        ({"regex": 5}, "structured.regex"),
        ({"choice": []}, "structured.choice"),
        ({"regex": "a", "choice": ["b"]}, "structured"),
        ({"schema": {}}, "structured"),
    ],
)
def test_what_is_wrong_is_said_at_once(structured: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured=structured)
    assert caught.value.field == field


def test_what_cannot_be_compiled_is_said_before_any_prompt_runs(llm: LLM) -> None:
    before = llm.stats().steps
    with pytest.raises(RequestError, match="unclosed group") as caught:
        llm.generate(["p", "q"], [params(None), params({"regex": "("})])
    assert caught.value.field == "structured.regex"
    assert (llm.stats().steps, llm.stats().waiting) == (before, 0)


def test_nothing_asked_for_is_plain_text() -> None:
    assert SamplingParams(structured={}).spec is None
    assert SamplingParams(structured={"json": None, "json_object": False}).spec is None


def test_min_tokens_beyond_the_end_of_the_text(llm: LLM) -> None:
    """The text is complete and nothing else may follow: it ends, for greedy and for drawn tokens."""
    for temperature in (0.0, 1.0):
        spec = params({"choice": ["ab", "cd"]}, min_tokens=10, temperature=temperature)
        (out,) = llm.generate("p", spec)
        assert (out.text in ("ab", "cd"), out.finish_reason, out.outputs[0].error) == (True, "stop", None)
        assert len(out.token_ids) == 2


def test_min_tokens_within_what_a_grammar_allows(llm: LLM) -> None:
    (out,) = llm.generate("p", params({"regex": "a+"}, min_tokens=7, max_tokens=8))
    assert set(out.text) == {"a"}
    assert len(out.text) >= 7


def test_an_end_that_is_not_allowed(llm: LLM) -> None:
    """Only letters may be drawn, so the token that would end the text may not."""
    (out,) = llm.generate("p", params({"choice": ["ab"]}, allowed_token_ids=llm.tokenize("ab")))
    assert (out.text, out.finish_reason, out.outputs[0].error) == ("ab", "stop", None)


def test_a_dead_end_inside_the_text_is_an_error(llm: LLM) -> None:
    (out,) = llm.generate("p", params({"choice": ["ab"]}, allowed_token_ids=llm.tokenize("a")))
    assert out.finish_reason == "error"
    assert "no token can follow" in str(out.outputs[0].error)


def test_a_special_stop_token_ends_a_text_where_it_is_complete(llm: LLM) -> None:
    """260 has no text, so the grammar lets it end the text; a letter stays a letter, and ends the answer."""
    spec = params({"choice": ["ab"]}, stop_token_ids=[260], logit_bias={260: 100})
    (out,) = llm.generate("p", spec)
    assert (out.text, out.token_ids[-1], out.finish_reason, out.stop_reason) == ("ab", 260, "stop", 260)
    stop = llm.tokenize("c")
    (out,) = llm.generate("p", params({"choice": ["abcd"]}, stop_token_ids=stop))
    assert (out.text, out.finish_reason, out.stop_reason) == ("ab", "stop", *stop)
