"""A compiled grammar, and one request's walk through it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.runtime.structured.binding import Core
from inferir.runtime.structured.vocabulary import Vocabulary


class GrammarState:
    """Where one text stands in its grammar. Not thread-safe; nothing here blocks.

    Before each token, `fill` says which tokens may come; after it, `accept` moves on. The text ends when a stop token
    is accepted, which is allowed exactly where the grammar is complete.
    """

    def __init__(self, core: Core, compiled: Any, stop_ids: tuple[int, ...], size: int) -> None:
        self._matcher = core.matcher(compiled, list(stop_ids))
        self._stop_ids = stop_ids
        self._last_word = np.int32((1 << size % 32) - 1 if size % 32 else -1)

    @property
    def finished(self) -> bool:
        """Whether a stop token has been accepted. Nothing is allowed after it."""
        return bool(self._matcher.is_terminated())

    def fill(self, row: npt.NDArray[np.int32]) -> bool:
        """Write the mask of the next token; False if it allows everything.

        row: contiguous int32 [ceil(vocab / 32)]; bit i % 32 of word i // 32 is set where token i is allowed. A finished
        state, and one from which no token leads on, allow the stop tokens, so that sampling never meets an empty mask.
        """
        if self.finished:
            return self._only_stops(row)
        limited = bool(self._matcher.fill_next_token_bitmask(row, 0, False))
        if not limited:
            row.fill(-1)
        row[-1] &= self._last_word  # the core leaves bits beyond the vocabulary as they come
        if not limited:
            return False
        return True if row.any() else self._only_stops(row)

    def accept(self, token: int) -> bool:
        """Move on by `token`. False, without any change, if the grammar does not allow it here."""
        return not self.finished and bool(self._matcher.accept_token(token, False))

    def end(self) -> bool:
        """End the text here. False, without any change, where the grammar is not complete."""
        return self.finished or self.accept(self._stop_ids[0])

    def _only_stops(self, row: npt.NDArray[np.int32]) -> bool:
        row.fill(0)
        words = row.view(np.uint32)
        for i in self._stop_ids:
            words[i // 32] |= np.uint32(1 << i % 32)
        return True


class Grammar:
    """A grammar compiled for one vocabulary; immutable, and shared by any number of states.

    memory_bytes: what it holds in memory.
    """

    def __init__(self, core: Core, compiled: Any, vocabulary: Vocabulary) -> None:
        self._core = core
        self._compiled = compiled
        self._vocabulary = vocabulary
        self.memory_bytes = core.memory_bytes(compiled)

    def new_state(self, extra_stops: Iterable[int] = ()) -> GrammarState:
        """A walk from the start. extra_stops: tokens that end the text beside those of the vocabulary.

        Of these, tokens with a text of their own stay text: the grammar may need them, and who runs the request ends it
        after them.
        """
        tokens = self._vocabulary.tokens
        extra = {i for i in extra_stops if 0 <= i < len(tokens) and not tokens[i]}
        stops = tuple(sorted({*self._vocabulary.stop_ids, *extra}))
        return GrammarState(self._core, self._compiled, stops, self._vocabulary.size)
