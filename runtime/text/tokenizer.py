"""The artifact's tokenizer: a thin layer over the `tokenizers` library. No pad token is ever needed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from inferir.ir.errors import ArtifactError
from inferir.runtime.text.request_values import check_text
from inferir.runtime.text.token_bytes import TokenBytes, token_bytes

# Texts come one at a time, so the library needs no threads of its own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """Text to token ids and back.

    `config` is the content of tokenizer_config.json, `backend` the library's tokenizer, not to be changed.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.config = config or {}

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer in `folder`. Raises `ArtifactError` naming a file that is missing or cannot be parsed."""
        path = Path(folder) / "tokenizer.json"
        if not path.exists():
            raise ArtifactError(f"{path}: not found; the artifact has no tokenizer, so prompts must be token ids")
        try:
            backend = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        except Exception as e:  # the library raises plain Exception
            raise ArtifactError(f"{path}: {e}") from None
        return Tokenizer(backend, read_json(Path(folder) / "tokenizer_config.json"))

    def encode(self, text: str, *, add_special_tokens: bool = True, field: str = "prompt") -> list[int]:
        """Token ids of `text`; `add_special_tokens` adds what the tokenizer's own template adds, such as BOS.

        Raises `RequestError` naming `field` for half of a surrogate pair, which no text can contain.
        Other threads run meanwhile: only the library's calls for batches release the interpreter lock.
        """
        try:
            (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError:
            check_text(text, field)
            raise
        ids: list[int] = encoding.ids
        return ids

    @cached_property
    def unknown_id(self) -> int | None:
        """The id of text that the vocabulary does not have."""
        named = (getattr(self.backend.model, "unk_token", None), self.config.get("unk_token"), "<unk>")
        for token in named:
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and (found := self.id(token)) is not None:
                return found
        return None

    def fewest_tokens(self, text: str) -> int:
        """How many tokens `text` has at least, without looking at it; 0 if a token may stand for any amount of text."""
        return len(text) // self._longest if self.bytes is not None else 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; ids without token, as in a padded vocabulary, are empty."""
        known = [i for i in ids if self.token(i) is not None]
        text: str = self.backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token(self, index: int) -> str | None:
        """The token with the id `index`, in the vocabulary's own spelling."""
        return self.backend.id_to_token(index) if 0 <= index < 1 << 32 else None

    def id(self, token: str) -> int | None:
        """The id of a token in the vocabulary's own spelling."""
        return self.backend.token_to_id(token)

    @cached_property
    def bytes(self) -> TokenBytes | None:
        """Bytes of each token, where the tokenizer's decoder only joins bytes."""
        return token_bytes(self.backend)

    @cached_property
    def _longest(self) -> int:
        """Characters of the longest token in the vocabulary's spelling, which is never shorter than the text."""
        return max(map(len, self.backend.get_vocab()), default=1) or 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens, such as end-of-sequence or chat markers."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, empty if there is no such file. Raises `ArtifactError` if it is not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise ArtifactError(f"{path}: {e}") from None
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: not a JSON object")
    return value
