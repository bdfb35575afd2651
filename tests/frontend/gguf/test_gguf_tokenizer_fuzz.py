"""Tokenizer metadata that is wrong in one place: a tokenizer that loads, or one line that names a key."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import tiny_case, write
from tokenizers import Tokenizer

from inferir.frontend.gguf import gguf_tokenizer
from inferir.frontend.gguf.gguf_metadata import metadata
from inferir.frontend.gguf.gguf_vocabulary import TOKENIZER_KEYS
from inferir.ir.errors import FrontendError

VALUES: tuple[Any, ...] = (0, -1, 10**12, 1.5, float("nan"), True, "", "x", "▁", [], [1], ["a"], ["a", 1], ["", ""])


def changed(stated: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A key is dropped, gets another value, or one entry of its list is changed, dropped or doubled."""
    keys = [*(key for key in stated if key.startswith("tokenizer.")), *TOKENIZER_KEYS, "general.name"]
    key = rng.choice(keys)
    if rng.random() < 0.2:
        return {k: v for k, v in stated.items() if k != key}
    value = stated.get(key)
    if not isinstance(value, list) or rng.random() < 0.4:
        return {**stated, key: rng.choice(VALUES)}
    at = rng.randrange(len(value))
    new = rng.choice([[], [value[at]] * 2, [rng.choice((*VALUES, *value[:3]))]])
    return {**stated, key: [*value[:at], *new, *value[at + 1 :]]}


@pytest.mark.parametrize("name", ["gpt2/smollm", "gpt2/tekken", "gemma4/", "llama/"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_case_is_right_or_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "tiny.gguf", tiny_case(name))
    stated = dict(metadata(file))
    refused = 0
    for seed in range(80):
        now = changed(stated, random.Random(seed))
        monkeypatch.setattr(gguf_tokenizer, "metadata", lambda _, now=now: now)
        try:
            gguf_tokenizer.export(file, tmp_path)
        except FrontendError as error:
            refused += 1
            if "\n" in str(error) or not str(error).startswith("tiny.gguf: tokenizer."):
                raise
            continue
        Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a 12 é<|im_end|>")
        gguf_tokenizer.decisions(file)
    assert 20 <= refused < 80
