"""All named templates of a folder are exported, as transformers finds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import byte_level

from inferir.frontend.checkpoint.huggingface import api, quiet
from inferir.frontend.source.export_tokenizer import export_tokenizer
from inferir.frontend.source.model_source import load_source
from inferir.frontend.tokenizer.template_files import TemplateWarning, folder_templates, stated_templates, template_file
from inferir.ir.errors import FrontendError

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]

PLAIN, TOOLS, RAG = "plain {{ messages }}", "tools {{ tools }}", "documents {{ documents }}"
NAMED = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TOOLS}]


@pytest.fixture
def folder(save_tiny: SaveTiny, edited: Edited) -> Path:
    out = edited(save_tiny("llama", vocab_size=512))
    byte_level().save(str(out / "tokenizer.json"))
    return out


def lay(folder: Path, *, config: Any = None, main: str | None = None, legacy: Any = None, **more: str) -> None:
    """Put templates into a folder: tokenizer_config.json, chat_template.jinja, chat_template.json, additional ones."""
    (folder / "tokenizer_config.json").write_text(json.dumps({} if config is None else {"chat_template": config}))
    if main is not None:
        (folder / "chat_template.jinja").write_text(main)
    if legacy is not None:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": legacy}))
    for name, text in more.items():
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)


PLACES: list[dict[str, Any]] = [
    {},
    {"config": PLAIN},
    {"config": NAMED},
    {"config": NAMED[:1]},
    {"config": NAMED[1:]},
    {"config": [NAMED[0], {"name": "default", "template": RAG}]},
    {"main": PLAIN},
    {"main": PLAIN, "config": NAMED},
    {"main": PLAIN, "config": RAG},
    {"main": PLAIN, "tool_use": TOOLS},
    {"main": PLAIN, "tool_use": TOOLS, "rag": RAG},
    {"main": PLAIN, "tool_use": TOOLS, "config": RAG},
    {"main": PLAIN, "default": RAG},
    {"tool_use": TOOLS},
    {"main": PLAIN, "legacy": RAG},
    {"config": PLAIN, "legacy": RAG},
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "+".join(place) or "none")
def test_templates_are_those_of_transformers(place: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    lay(folder, **place)
    with quiet():
        theirs = api().auto_tokenizer.from_pretrained(str(folder)).chat_template
    want = theirs if isinstance(theirs, dict) else {} if theirs is None else {"default": theirs}
    facts = export_tokenizer(load_source(str(folder)), tmp_path / "out")
    files = {f.name: f.read_text() for f in (tmp_path / "out").glob("chat_template*")}
    assert files == {template_file(name): text for name, text in want.items()}
    assert {d.value for d in facts.decisions if d.subject == "chat template"} == set(want)


def test_files_in_the_artifact_are_flat() -> None:
    assert template_file("default") == "chat_template.jinja"
    assert template_file("tool_use") == "chat_template.tool_use.jinja"


def test_decisions_name_file_and_key(folder: Path, tmp_path: Path) -> None:
    lay(folder, main=PLAIN, tool_use=TOOLS)
    found = export_tokenizer(load_source(str(folder)), tmp_path / "a").decisions
    sources = {d.value: d.source for d in found if d.subject == "chat template"}
    assert sources == {"default": "chat_template.jinja", "tool_use": "additional_chat_templates/tool_use.jinja"}
    (folder / "chat_template.jinja").unlink()
    lay(folder, config=NAMED)
    sources = {n: t.source for n, t in folder_templates(folder, {"chat_template": NAMED}).items()}
    assert sources["default"] == "tokenizer_config.json: chat_template[default]"


def test_additional_templates_do_not_hide_the_default(folder: Path) -> None:
    """transformers is left without a default then, and refuses every conversation."""
    lay(folder, config=PLAIN, tool_use=TOOLS)
    assert {n: t.text for n, t in folder_templates(folder, {"chat_template": PLAIN}).items()} == {
        "default": PLAIN,
        "tool_use": TOOLS,
    }


def test_template_of_a_processor_is_the_last_resort(folder: Path) -> None:
    lay(folder, legacy=PLAIN)
    (found,) = folder_templates(folder, {}).values()
    assert (found.text, found.source) == (PLAIN, "chat_template.json: chat_template")


@pytest.mark.parametrize("name", ["a.b", "../x", "tool use", "", "ä"])
def test_names_that_cannot_be_files_are_left_out_by_name(name: str, folder: Path) -> None:
    config = {"chat_template": [NAMED[0], {"name": name, "template": RAG}]}
    with pytest.warns(TemplateWarning, match=r"chat_template\[.*is left out"):
        assert set(folder_templates(folder, config)) == {"default"}


def test_an_empty_template_is_left_out(folder: Path) -> None:
    lay(folder, main="  \n")
    with pytest.warns(TemplateWarning, match=r"chat_template\.jinja: .* is empty"):
        assert folder_templates(folder, {}) == {}


@pytest.mark.parametrize("value", [3, [3], [{"name": "x"}], [{"template": "x"}], [{"name": 1, "template": "x"}], True])
def test_other_values_are_refused_by_key(value: Any) -> None:
    with pytest.raises(FrontendError, match="here: chat_template is neither a text nor a list"):
        stated_templates(value, "here: chat_template")


def test_a_file_that_is_not_text_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FrontendError, match=r"chat_template\.jinja cannot be read: it is not UTF-8"):
        folder_templates(folder, {})
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").mkdir()
    with pytest.raises(FrontendError, match=r"chat_template\.jinja cannot be read"):
        folder_templates(folder, {})
