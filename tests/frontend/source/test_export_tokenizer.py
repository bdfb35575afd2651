"""Exported tokenizers stand alone: the runtime reads them with `tokenizers` and jinja2 only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inferir.frontend.source.export_tokenizer import export_tokenizer
from inferir.frontend.source.model_source import load_source
from inferir.ir.errors import FrontendError

SaveTiny = Callable[..., Path]
Edited = Callable[..., Path]

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def byte_tokenizer(special: tuple[str, ...] = ("<pad>", "<s>", "</s>")) -> Tokenizer:
    """A byte-level tokenizer without merges; special tokens first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


@pytest.fixture
def folder(save_tiny: SaveTiny, edited: Edited) -> Path:
    """A model folder with a tokenizer whose special tokens are spelled as objects and as text."""
    out = edited(save_tiny("llama"))
    byte_tokenizer().save(str(out / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "add_bos_token": True,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    return out


def write_config(folder: Path, **changes: Any) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def export(folder: Path, dest: Path) -> Any:
    return export_tokenizer(load_source(str(folder)), dest)


def test_folder_tokenizer_is_copied(folder: Path, tmp_path: Path) -> None:
    facts = export(folder, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert facts.size == 259
    assert not (out / "chat_template.jinja").exists()
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config["add_bos_token"] is True
    special = json.loads((out / "special_tokens_map.json").read_text())
    assert special == {"bos_token": "<s>", "eos_token": "</s>"}
    text = "héllo, wörld"
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("place", ["file", "config", "named", "json"])
def test_chat_template_is_found(place: str, folder: Path, tmp_path: Path) -> None:
    if place == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        write_config(folder, chat_template="not this one")
    elif place == "config":
        write_config(folder, chat_template=TEMPLATE)
    elif place == "named":
        named = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": TEMPLATE}]
        write_config(folder, chat_template=named)
    else:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    export(folder, tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATE
    assert "chat_template" not in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())


def test_generation_defaults(folder: Path, tmp_path: Path) -> None:
    (folder / "generation_config.json").unlink()
    export(folder, tmp_path / "a")
    assert json.loads((tmp_path / "a" / "generation_config.json").read_text())["eos_token_id"] == 2
    (folder / "generation_config.json").write_text('{"temperature": 0.3, "eos_token_id": [5, 9]}')
    export(folder, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "generation_config.json").read_text())["temperature"] == 0.3


def test_missing_tokenizer_is_one_line(save_tiny: SaveTiny, tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"no tokenizer\.json") as error:
        export(save_tiny("llama"), tmp_path / "out")
    assert "\n" not in str(error.value)


def test_damaged_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(FrontendError, match=r"tokenizer\.json cannot be read"):
        export(folder, tmp_path / "out")


def test_slow_tokenizer_is_converted(save_tiny: SaveTiny, edited: Edited, tmp_path: Path) -> None:
    """A folder with vocabulary and merges only, as of GPT-2."""
    source = edited(save_tiny("gpt2"))
    vocab = byte_tokenizer(("<|endoftext|>",)).get_vocab()
    (source / "vocab.json").write_text(json.dumps(vocab))
    (source / "merges.txt").write_text("#version: 0.2\n")
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    facts = export(source, tmp_path / "out")
    assert facts.size == 257
    special = json.loads((tmp_path / "out" / "special_tokens_map.json").read_text())
    assert special["eos_token"] == "<|endoftext|>"
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("plain text").ids) == "plain text"
