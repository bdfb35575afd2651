"""The tokenizer's files, and prompts without a pad token."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from inferir.ir.errors import ArtifactError
from inferir.runtime.text.tokenizer import Tokenizer


def save(folder: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "[UNK]": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    backend.add_special_tokens(["<s>"])
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))


def test_stored_padding_and_truncation_are_off(tmp_path: Path) -> None:
    save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a b a b") == [0, 1, 2, 1, 2]
    assert tokenizer.encode("a", add_special_tokens=False) == [1]
    assert tokenizer.decode([0, 1, 2]) == "a b"
    assert tokenizer.decode([0, 1], skip_special_tokens=False) == "<s> a"
    assert (tokenizer.token(2), tokenizer.token(99), tokenizer.id("b"), tokenizer.id("zz")) == ("b", None, 2, None)
    assert tokenizer.special_ids == {0}
    assert tokenizer.config == {}


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: not found"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: "):
        Tokenizer.load(tmp_path)
    save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json: not a JSON object"):
        Tokenizer.load(tmp_path)
