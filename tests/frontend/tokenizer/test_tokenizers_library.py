"""Failures of the tokenizers library are one line, and what both kinds of source write is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferir.frontend.tokenizer.tokenizers_library import failures_as, names_token, parse, token_text, write_config
from inferir.ir.errors import FrontendError


class PanicException(BaseException):
    """As the library's panics look like."""


@pytest.mark.parametrize("error", [ValueError("a\nb"), PanicException("a\n  b")])
def test_failures_are_one_line(error: BaseException) -> None:
    with pytest.raises(FrontendError, match=r"^it fails: a b$"), failures_as("it fails"):
        raise error


def test_other_errors_pass() -> None:
    with pytest.raises(KeyboardInterrupt), failures_as("it fails"):
        raise KeyboardInterrupt
    with pytest.raises(FrontendError, match=r"^as it is$"), failures_as("it fails"):
        raise FrontendError("as it is")


def test_a_merge_without_its_prefix_is_refused(tmp_path: Path) -> None:
    model = {"type": "BPE", "continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    with pytest.raises(FrontendError, match="the merge 'a b' lacks the continuing_subword_prefix '##'"):
        parse(tmp_path / "tokenizer.json")


def test_tokens_are_texts_or_objects() -> None:
    assert [token_text(x) for x in ("a", {"content": "b"}, {"content": 1}, None, True)] == ["a", "b", None, None, None]
    assert names_token("eos_token", "</s>")
    assert not names_token("add_bos_token", True)
    assert not names_token("tokenizer_class", "x")


def test_the_special_tokens_are_those_of_the_config(tmp_path: Path) -> None:
    config = {"add_bos_token": True, "bos_token": {"content": "é"}, "eos_token": "</s>"}
    write_config(tmp_path, config)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == config
    assert json.loads((tmp_path / "special_tokens_map.json").read_text()) == {"bos_token": "é", "eos_token": "</s>"}
