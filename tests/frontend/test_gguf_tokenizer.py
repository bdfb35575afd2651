"""Tokenizers of GGUF files, compared with llama.cpp's ids of the same files (`tests/make_gguf_rules.py` asked for them)
and, where llama.cpp departs from a model's published rule, with that rule in another regular-expression engine.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import regex
from make_gguf_rules import cases
from tiny_gguf import CONTROL, NORMAL, PROBES, UNUSED, USER_DEFINED, Tiny, byte_level, sentence_piece, write
from tokenizers import Tokenizer

from inferir.frontend import gguf_pretokenizers
from inferir.frontend.gguf_tokenizer import TOKENIZER_KEYS, TokenizerWarning, decisions, export, unaccounted
from inferir.ir.errors import FrontendError

STORED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "gguf_rules.json").read_text())
TOKENS, TYPES, SCORES, MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))

Make = Callable[[Tiny], Tokenizer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The exported tokenizer of a file that is written for it."""

    def make(tiny: Tiny) -> Tokenizer:
        export(write(tmp_path / "tiny.gguf", tiny), tmp_path)
        return Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    return make


def plain(tokenizer: Tokenizer, text: str) -> list[str]:
    """Tokens of a text in which nothing is read as a control token."""
    tokenizer.encode_special_tokens = True
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return tokens


# Where llama.cpp departs from the published rule: the probes, and the published rule.
_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]*[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]+%s"
DEPARTS: dict[str, tuple[str, ...]] = {}


@pytest.mark.parametrize("name", sorted(STORED["names"]))
@pytest.mark.filterwarnings("ignore::inferir.frontend.gguf_tokenizer.TokenizerWarning")
def test_ids_are_those_of_llama_cpp(name: str, make: Make) -> None:
    tokenizer = make(cases()[name])
    want = STORED["ids"][STORED["names"][name]]
    got = [tokenizer.encode(text).ids for text in PROBES]
    wrong = [text for text, a, b in zip(PROBES, got, want, strict=True) if a != b]
    assert wrong == [], name
