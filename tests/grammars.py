"""A vocabulary of one token per byte, as in `artifacts.py`, and random texts of a grammar over it."""

from __future__ import annotations

import random

import numpy as np

from inferir.runtime.structured import Grammar, GrammarState
from inferir.runtime.structured.vocabulary import Vocabulary

EOS = 257
SIZE = 261
VOCABULARY = Vocabulary([bytes([i]) for i in range(256)] + [b""] * (SIZE - 256), [EOS])


def allowed(state: GrammarState, size: int = SIZE) -> list[int]:
    row = np.full((size + 31) // 32, 0x5A5A5A5A, np.int32)
    state.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert not bits[size:].any(), "a token outside the vocabulary is allowed"
    return [int(i) for i in np.flatnonzero(bits)]


def write(grammar: Grammar, seed: int, limit: int = 400, prefer: bytes = b"") -> str | None:
    """A random text; None if it has not ended after `limit` tokens. prefer: bytes taken wherever they are allowed."""
    state, draw, out = grammar.new_state(), random.Random(seed), b""
    for _ in range(limit):
        tokens = allowed(state)
        liked = [t for t in tokens if t in set(prefer)]
        token = draw.choice(liked or tokens)
        assert state.accept(token)
        if state.finished:
            assert token == EOS
            return out.decode("utf-8", "replace")
        out += bytes([token])
    return None


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a text is one of the grammar, checked token by token against the masks too."""
    state = grammar.new_state()
    for byte in text.encode():
        may = byte in allowed(state)
        assert state.accept(byte) == may
        if not may:
            return False
    return EOS in allowed(state)
