"""Options of sampling: what they become, and which exclude each other."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import typer

from inferir.cli.sampling_options import sampling_fields
from inferir.ir.errors import InferirError
from inferir.runtime.sampling.sampling_params import SamplingParams


def test_what_is_not_given_is_left_out() -> None:
    assert sampling_fields() == {"ignore_eos": False}
    assert sampling_fields(bad_word=[], stop=[], stop_token_id=[], logit_bias=[], choice=[]) == {"ignore_eos": False}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temperature": 0.5}, ("temperature", 0.5)),
        ({"logit_bias": ["3=-1.5", "7=2"]}, ("logit_bias", {3: -1.5, 7: 2.0})),
        ({"bad_word": ["x"]}, ("bad_words", ["x"])),
        ({"stop_token_id": [4]}, ("stop_token_ids", [4])),
        ({"json_object": True}, ("structured", {"json_object": True})),
        ({"regex": ""}, ("structured", {"regex": ""})),
        ({"choice": ["a", "b"]}, ("structured", {"choice": ["a", "b"]})),
    ],
)
def test_fields(given: dict[str, Any], field: tuple[str, Any]) -> None:
    found = sampling_fields(**given)
    assert found[field[0]] == field[1]
    assert set(found) <= {f.name for f in dataclasses.fields(SamplingParams)}


def test_files(tmp_path: Path) -> None:
    (tmp_path / "g").write_text('root ::= "x"')
    assert sampling_fields(grammar=tmp_path / "g")["structured"] == {"grammar": 'root ::= "x"'}
    with pytest.raises(InferirError, match=r"--json-schema .*: No such file"):
        sampling_fields(json_schema=tmp_path / "none")


@pytest.mark.parametrize("text", ["3", "x=1", "3=x", "=1"])
def test_a_bias_that_is_none(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not ID=X"):
        sampling_fields(logit_bias=[text])


def test_structures_exclude_each_other() -> None:
    with pytest.raises(typer.BadParameter, match="excludes --regex") as refused:
        sampling_fields(json_object=True, regex="x")
    assert refused.value.param_hint == "--json-object"
