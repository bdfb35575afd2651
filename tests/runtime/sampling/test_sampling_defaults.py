"""What a model's generation_config.json means for requests that do not say."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.api.llm import LLM, SamplingParams
from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest
from inferir.ir.errors import EngineError
from inferir.runtime.sampling.sampling_defaults import SamplingDefaults

CONFIG = {"temperature": 0.01, "top_k": 1, "repetition_penalty": 1.5, "max_new_tokens": 9, "eos_token_id": 257}


def values(**config: Any) -> dict[str, Any]:
    found = SamplingDefaults.of(config)
    assert found.ignored == ()
    return dict(found.values)


def test_what_is_taken() -> None:
    assert values(**CONFIG) == {"temperature": 0.01, "top_k": 1, "repetition_penalty": 1.5, "max_tokens": 9}
    assert values(do_sample=True, top_p=0.9, min_p=0.05) == {"top_p": 0.9, "min_p": 0.05}
    assert values(do_sample=False, top_p=0.9, temperature=0.5, repetition_penalty=1.1) == {"repetition_penalty": 1.1}


@pytest.mark.parametrize("config", [{"top_k": 0}, {"top_k": -1}, {"top_p": 1.0}, {"temperature": 1}, {"min_p": None}])
def test_what_changes_nothing(config: dict[str, Any]) -> None:
    assert values(**config) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("top_k", 2.5), ("top_p", -1), ("temperature", "hot"), ("max_new_tokens", 0), ("top_k", -2)]
)
def test_what_no_request_could_say_is_ignored(name: str, value: Any) -> None:
    found = SamplingDefaults.of({name: value, "min_p": 0.5})
    assert dict(found.values) == {"min_p": 0.5}
    (problem,) = found.ignored
    assert problem.startswith(f"{name} of generation_config.json is ignored: ")


def test_text() -> None:
    assert SamplingDefaults.of(CONFIG).text() == "repetition_penalty 1.5, max_tokens 9, temperature 0.01, top_k 1"
    assert SamplingDefaults().text() == ""


@pytest.fixture(scope="module")
def recommending(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = shutil.copytree(tiny_artifact, tmp_path_factory.mktemp("recommending") / "art")
    (copy / "tokenizer" / "generation_config.json").write_text(json.dumps({**CONFIG, "top_p": 7}))
    write_manifest(copy, msgspec.structs.replace(read_manifest(copy), files=file_records(copy)))
    return copy


@pytest.fixture(scope="module")
def llm(recommending: Path) -> Iterator[LLM]:
    with LLM(recommending, threads=1) as llm:
        yield llm


def test_generate_without_parameters(llm: LLM) -> None:
    recommended = SamplingParams(temperature=0.01, top_k=1, repetition_penalty=1.5, max_tokens=9)
    assert llm.sampling_params() == recommended
    (out,) = llm.generate("hello")
    assert out.token_ids == llm.generate("hello", recommended)[0].token_ids
    assert "".join(llm.stream("hello")) == out.text


def test_parameters_mean_what_they_say(llm: LLM, tiny_artifact: Path) -> None:
    """What is given wins over the recommendations, and equals the same without any."""
    given = {
        "temperature": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "seed": 3,
        "max_tokens": 20,
        "ignore_eos": True,
    }
    with LLM(tiny_artifact, threads=1) as plain:
        expected = plain.generate("hello", SamplingParams(**given))[0].token_ids
    assert llm.generate("hello", SamplingParams(**given))[0].token_ids == expected
    assert llm.generate("hello", llm.sampling_params(**given))[0].token_ids == expected
    assert llm.sampling_params(seed=1).top_k == 1


def test_none(recommending: Path) -> None:
    with LLM(recommending, threads=1, generation_config="none") as llm:
        assert llm.sampling_params() == SamplingParams()


def test_another_choice(tiny_artifact: Path) -> None:
    with pytest.raises(EngineError, match="must be one of auto, none"):
        LLM(tiny_artifact, generation_config="always")


def test_a_warning(recommending: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("inferir")
    log.addHandler(caplog.handler)
    try:
        LLM(recommending, threads=1).close()
    finally:
        log.removeHandler(caplog.handler)
    assert "top_p of generation_config.json is ignored: top_p must be from 0 to 1, not 7" in caplog.messages
