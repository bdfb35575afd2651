"""What a compile says about the end of a text, and that the engine obeys all of it."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import artifacts
import pytest

from inferir.api.llm import LLM, SamplingParams
from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache
from inferir.compile.compile_types import Captured, CompileOptions
from inferir.compile.compiler import capture
from inferir.compile.text_ends import VocabularyWarning
from inferir.frontend.source.end_ids import EndIdWarning
from inferir.frontend.source.model_source import load_source
from inferir.frontend.tokenizer.template_files import TemplateWarning
from inferir.inspect.inspect_artifact import as_json, view_artifact
from inferir.ir.contract.artifact import read_manifest
from inferir.ir.errors import FrontendError

BEGIN, END, USER, ASSISTANT, SYSTEM = range(256, 261)
TURNS = "{% for m in messages %}<|{{ 'user' if m.role == 'system' else m.role }}|>{{ m.content }}<|system|>{% endfor %}"
"""A template whose turns end with a token that no other file names."""

Variant = Callable[..., Path]


@pytest.fixture
def variant(tiny_model: Path, tmp_path: Path) -> Variant:
    """variant(config={}, generation=None, tokenizer={}) -> a copy of the tiny model with other entries in its files."""

    def make(
        config: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        tokenizer: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        for name, changes in (("config.json", config), ("tokenizer_config.json", tokenizer)):
            stated = {**json.loads((folder / name).read_text()), **(changes or {})}
            stated = {k: v for k, v in stated.items() if v != "absent"}
            (folder / name).write_text(json.dumps(stated))
        return folder

    return make


def captured(folder: Path) -> Captured:
    options = CompileOptions(trace_check=False)
    return capture(load_source(str(folder)), options, CompileCache.from_env(CacheOptions()))


def ends(folder: Path) -> dict[str, str]:
    return {d.value: d.source for d in captured(folder).decisions if d.subject == "end of text"}


FROM_TOKENIZER = "tokenizer_config.json: eos_token"
FROM_TEMPLATE = "tokenizer_config.json: chat_template: ends the assistant's turn"


@pytest.mark.parametrize("stated", [BEGIN, None, "absent"])
def test_the_tokenizers_own_end_is_joined(stated: Any, variant: Variant) -> None:
    folder = variant({"eos_token_id": stated}, tokenizer={"chat_template": "absent"})
    want = {"256 <s>": "config.json: eos_token_id"} if stated == BEGIN else {}
    assert ends(folder) == {**want, "257 </s>": FROM_TOKENIZER}


def test_all_places_are_joined(variant: Variant) -> None:
    folder = variant({"eos_token_id": [BEGIN, 7]}, {"eos_token_id": [9, BEGIN]}, {"chat_template": TURNS})
    assert list(ends(folder).items()) == [
        ("9", "generation_config.json: eos_token_id"),
        ("256 <s>", "generation_config.json: eos_token_id; config.json: eos_token_id"),
        ("7", "config.json: eos_token_id"),
        ("257 </s>", FROM_TOKENIZER),
        ("260 <|system|>", FROM_TEMPLATE),
    ]


def test_the_default_of_the_model_type_counts_only_alone(variant: Variant) -> None:
    """Llama's is 2, in this tokenizer an ordinary letter."""
    absent = {"eos_token": "absent", "chat_template": "absent"}
    folder = variant({"eos_token_id": "absent"}, tokenizer=absent)
    assert ends(folder) == {"2": "default of the model type llama"}
    shutil.rmtree(folder)
    assert "2" not in ends(variant({"eos_token_id": "absent"}))


def test_an_id_beyond_the_vocabulary_is_warned_about(variant: Variant) -> None:
    folder = variant({"eos_token_id": 1000})
    with pytest.warns(EndIdWarning, match=r"config\.json: eos_token_id names the id 1000, .* has 261 tokens"):
        assert "1000" not in ends(folder)


def test_a_wrong_type_is_refused_by_name(variant: Variant) -> None:
    with pytest.raises(FrontendError, match=r"generation_config\.json: eos_token_id is 'x'"):
        captured(variant(generation={"eos_token_id": "x"}))


def test_tokens_beyond_the_vocabulary_are_warned_about(variant: Variant) -> None:
    folder = variant()
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": 261}))
    with pytest.warns(
        VocabularyWarning, match=r"ids up to 261, .* has 261 tokens; .* such as '<new>' \(261\) is refused"
    ):
        captured(folder)


def test_what_a_compile_says_is_in_the_artifact_and_obeyed(variant: Variant, tmp_path: Path) -> None:
    """Compiled twice: what the cache delivers says the same."""
    folder, out = variant({"eos_token_id": None}, tokenizer={"chat_template": TURNS}), tmp_path / "out"
    for _ in range(2):
        artifacts.compile_tiny(folder, out)
        model = read_manifest(out).model
        assert model.eos_token_ids == (END, SYSTEM)
        shown = as_json(view_artifact(out))["model"]["decisions"]
        assert {"subject": "end of text", "value": "260 <|system|>", "source": FROM_TEMPLATE} in shown
        found = {(d["subject"], d["source"]) for d in shown}
        assert ("chat template", "tokenizer_config.json: chat_template") in found
        assert ("tokenizer", "tokenizer.json") in found
        assert ("weights", "model.safetensors") in found
        assert ("dtype", "config.json: dtype") in found
        assert "rope" in {subject for subject, _ in found}
    with LLM(out, threads=1) as llm:
        for token in (END, SYSTEM):
            params = SamplingParams(temperature=0, max_tokens=5, logit_bias={token: 100.0})
            (answer,) = llm.generate([[1, 2, 3]], params)
            assert (answer.finish_reason, len(answer.token_ids)) == ("stop", 1)
            params = SamplingParams(temperature=0, max_tokens=5, logit_bias={token: 100.0}, ignore_eos=True)
            assert len(llm.generate([[1, 2, 3]], params)[0].token_ids) == 5


def test_rope_is_named_by_its_key(variant: Variant) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    folder = variant({"rope_parameters": scaling})
    (rope,) = [d for d in captured(folder).decisions if d.subject == "rope"]
    assert (json.loads(rope.value), rope.source) == (scaling, "config.json: rope_parameters")


def test_a_template_that_does_not_compile_is_warned_about_by_file(variant: Variant, tmp_path: Path) -> None:
    folder = variant()
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    for _ in range(2):  # from the cache too
        with pytest.warns(
            TemplateWarning, match=r"^chat_template\.jinja: the chat template 'default' cannot be compiled"
        ):
            artifacts.compile_tiny(folder, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer" / "chat_template.jinja").is_file()


def test_named_templates_are_in_the_artifact(variant: Variant, tmp_path: Path) -> None:
    tools = "<tool_call> {{ tools }} {% for m in messages %}{{ m.content }}{% endfor %}"
    named = [{"name": "default", "template": TURNS}, {"name": "tool_use", "template": tools}]
    artifacts.compile_tiny(variant(tokenizer={"chat_template": named}), tmp_path / "out")
    folder, manifest = tmp_path / "out" / "tokenizer", read_manifest(tmp_path / "out")
    assert (folder / "chat_template.jinja").read_text() == TURNS
    assert (folder / "chat_template.tool_use.jinja").read_text() == tools
    assert "tokenizer/chat_template.tool_use.jinja" in manifest.files
    assert manifest.model.tool_style == "hermes"


def test_an_ordinary_model_warns_of_nothing(tiny_model: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ends(tiny_model).keys() == {"257 </s>"}
