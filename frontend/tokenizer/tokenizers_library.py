"""Calls of the tokenizers library, whose failures are plain exceptions, or panics that are none at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.huggingface import one_line
from inferir.frontend.checkpoint.model_files import read_bytes
from inferir.ir.errors import FrontendError


class TokenizerWarning(UserWarning):
    """A tokenizer is odd but usable, or its files contradict each other; the message names file, key or token."""


@contextmanager
def failures_as(message: str) -> Iterator[None]:
    """Turn whatever the block raises into a `FrontendError` of one line that begins with `message`."""
    try:
        yield
    except FrontendError:
        raise
    except Exception as error:
        raise FrontendError(f"{message}: {one_line(error)}") from error
    except BaseException as error:  # a panic of Rust code derives from it directly
        if type(error).__name__ != "PanicException":
            raise
        raise FrontendError(f"{message}: {one_line(error)}") from None


def parse(file: Path) -> Any:
    """The tokenizer in a tokenizer.json, without truncation and padding. Raises `FrontendError` naming the file."""
    import tokenizers

    raw = read_bytes(file)
    with failures_as(f"{file.name} cannot be read"):
        _check_merges(raw)
        tokenizer = tokenizers.Tokenizer.from_buffer(raw)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return tokenizer


def token_text(token: Any) -> str | None:
    """The text of a token as tokenizer_config.json gives it: as it is, or an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def names_token(key: str, value: Any) -> bool:
    """Whether an entry of tokenizer_config.json names a special token, unlike flags such as `add_bos_token`."""
    return key.endswith("_token") and token_text(value) is not None


def write_config(dest: Path, config: Mapping[str, Any]) -> None:
    """Write tokenizer_config.json, and special_tokens_map.json with plain strings."""
    special = {k: token_text(v) for k, v in config.items() if names_token(k, v)}
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        (dest / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_merges(raw: bytes) -> None:
    """The library panics, with a trace on standard error, at a merge that is shorter than the prefix of its kind."""
    if b"continuing_subword_prefix" not in raw:
        return
    document = json.loads(raw)
    model = document.get("model") if isinstance(document, Mapping) else None
    if not isinstance(model, Mapping):
        return
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str) and not pair[1].startswith(prefix):
            raise FrontendError(
                f"tokenizer.json cannot be read: the merge {merge!r} lacks the continuing_subword_prefix {prefix!r}"
            )
