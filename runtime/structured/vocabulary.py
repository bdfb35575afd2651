"""The vocabulary as grammars see it: the bytes of every token id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from inferir.ir.errors import EngineError
from inferir.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """tokens: the bytes of each id; empty for ids that no text of a grammar has (special tokens, padding).

    stop_ids: sorted ids that end a text; allowed exactly where the grammar is complete. special: texts of special
    tokens that end none, by id; a grammar has one only where it names its id.
    """

    tokens: list[bytes]
    stop_ids: list[int]
    special: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> Vocabulary:
        """The vocabulary of an artifact; `vocab_size` counts logits, padding included.

        Raises `EngineError` if the bytes of the tokens cannot be told (neither byte-level BPE nor byte fallback) or if
        no stop id lies inside the vocabulary.
        """
        table = tokenizer.bytes
        if table is None:
            raise EngineError("structured output needs a tokenizer of byte-level BPE or with byte fallback")
        stops = sorted(i for i in set(stop_ids) if 0 <= i < vocab_size)
        if not stops:
            raise EngineError("structured output needs an end-of-text token, and the artifact names none")
        hidden = tokenizer.special_ids | set(stops)
        tokens = [b"" if i in hidden else table[i] for i in range(vocab_size)]
        special = {
            i: text
            for i in sorted(tokenizer.special_ids - set(stops))
            if i < vocab_size and (text := tokenizer.decode([i], skip_special_tokens=False))
        }
        return Vocabulary(tokens, stops, special)
