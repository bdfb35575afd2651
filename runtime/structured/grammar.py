"""A compiled grammar, and one request's walk through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.errors import EngineError, InferirError, RequestError
from inferir.runtime.structured.vocabulary import Vocabulary

_LIMITS = ("items", "lexer", "fuel", "limit", "too complex", "too many", "too big", "too large")


class GrammarLimitError(RequestError):
    """Following a grammar would take more than a limit allows. Not the engine's fault, nor that of other requests."""


class GrammarState:
    """Where one text stands in its grammar. Not thread-safe; nothing here blocks.

    Before each token, `fill` says which tokens may come; after it, `accept` moves on. The text ends when a stop token
    is accepted, which is allowed exactly where the grammar is complete. Both raise `GrammarLimitError` where following
    the grammar exceeds a limit, and `EngineError` if the core fails; the state is of no use after that.

    finished: whether a stop token has been accepted. Nothing is allowed after it.
    """

    def __init__(self, grammar: Grammar, matcher: Any, stop_ids: frozenset[int]) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._stop_ids = stop_ids
        self.finished = False

    def fill(self, row: npt.NDArray[np.int32]) -> bool:
        """Write the mask of the next token.

        row: contiguous int32 [ceil(vocab / 32)]; bit i % 32 of word i // 32 is set where token i is allowed. A finished
        state allows the stop tokens, so that sampling never meets an empty mask.
        """
        if self.finished:
            row.fill(0)
            self._allow_stops(row)
            return True
        self._grammar.steps += 1
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            raise self._grammar.failure(self._matcher)
        if self._matcher.is_accepting():
            self._allow_stops(row)
        return True

    def accept(self, token: int) -> bool:
        """Move on by `token`. False, without any change, if the grammar does not allow it here."""
        if self.finished:
            return False
        if token in self._stop_ids:
            self.finished = self._complete()
            return self.finished
        if not self._grammar.writes(token):
            return False
        if self._matcher.try_consume_tokens([token]) == 1:
            return True
        if self._matcher.is_error():
            raise self._grammar.failure(self._matcher)
        return False

    def end(self) -> bool:
        """End the text here. False, without any change, where the grammar is not complete."""
        self.finished = self.finished or self._complete()
        return self.finished

    def _complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def _allow_stops(self, row: npt.NDArray[np.int32]) -> None:
        words = row.view(np.uint32)
        for i in self._stop_ids:
            words[i // 32] |= np.uint32(1 << i % 32)


class Grammar:
    """A grammar compiled for one vocabulary, shared by any number of states.

    steps: masks that its states have filled. broken: whether one of them failed; the states share what the core learns
    on the way, so no more should be made. error: makes an error of the request that asked for it from a reason.
    """

    def __init__(self, matcher: Any, vocabulary: Vocabulary, error: Callable[[str], RequestError]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._error = error
        self.steps = 0
        self.broken = False

    def new_state(self, extra_stops: Iterable[int] = ()) -> GrammarState:
        """A walk from the start. extra_stops: tokens that end the text beside those of the vocabulary.

        Of these, tokens with a text of their own stay text: the grammar may need them, and who runs the request ends it
        after them.
        """
        tokens = self._vocabulary.tokens
        extra = {i for i in extra_stops if 0 <= i < len(tokens) and not tokens[i]}
        return GrammarState(self, self._matcher.deep_copy(), frozenset((*self._vocabulary.stop_ids, *extra)))

    def writes(self, token: int) -> bool:
        """Whether `token` may be part of a text at all."""
        tokens = self._vocabulary.tokens
        return 0 <= token < len(tokens) and (bool(tokens[token]) or token in self._vocabulary.special)

    def failure(self, matcher: Any) -> InferirError:
        """The error of a state that failed."""
        self.broken = True
        reason = first_line(matcher.get_error())
        if not reason or reason == "NoExtensionBias":
            return self._error("no token of the vocabulary continues the text that it asks for")
        if reason.startswith("panic") or not any(word in reason.lower() for word in _LIMITS):
            return EngineError(f"following a grammar failed: {reason}")
        error = self._error(f"following it exceeds a limit ({reason}); make it simpler")
        return GrammarLimitError(str(error), error.field)


def first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].strip()
