"""Text from tokens as they come: whole characters only, and never a character that may belong to a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence

from inferir.runtime.text.token_bytes import TokenBytes
from inferir.runtime.text.tokenizer import Tokenizer


class BytesDecoder:
    """For tokenizers with known token bytes: one look-up and an incremental UTF-8 decoder.

    As of all decoders, `push` gives the characters that a token completes, and `flush` what is still held back, with
    incomplete bytes as U+FFFD.
    """

    __slots__ = ("_skipped", "_table", "_utf8")

    def __init__(self, table: TokenBytes, skipped: frozenset[int]) -> None:
        self._table = table
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return "" if token in self._skipped else self._utf8.decode(self._table[token])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """For any tokenizer: decodes a short window of tokens with and without the newest, and takes the difference.

    A character is at most 4 bytes, so more than `_PENDING` tokens that still end in U+FFFD are not an incomplete
    character but invalid bytes, and are given out. That bounds the window, and with it the cost per token.
    """

    _PENDING = 8
    _CONTEXT = 6

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._context = list(context[-self._CONTEXT :])  # what the pending tokens follow
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if self._tokenizer.token(token) is None:
            return ""
        self._pending.append(token)
        text = self._new_text()
        if text.endswith("\ufffd") and len(self._pending) <= self._PENDING:
            return ""
        return self._give(text)

    def flush(self) -> str:
        return self._give(self._new_text()) if self._pending else ""

    def _new_text(self) -> str:
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]

    def _give(self, text: str) -> str:
        if text:  # a token without text, such as a skipped special one, is no context
            self._context = self._pending
        self._pending = []
        return text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special)


class StopMatcher:
    """Follows several stop strings through a text, one character at a time (Knuth-Morris-Pratt).

    The first stop string to be *completed* wins, so the result does not depend on how the text is cut into pieces; of
    several that are completed by the same character, the longest. The cost per character does not depend on their
    lengths.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_borders(s) for s in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> tuple[int, str] | None:
        """Follow `text`. At the first completed stop string: the number of characters read, and that string."""
        for position, char in enumerate(text):
            for which, stop in enumerate(self._stops):
                matched = self._matched[which]
                while matched and stop[matched] != char:
                    matched = self._borders[which][matched - 1]
                if stop[matched] == char:
                    matched += 1
                if matched == len(stop):
                    return position + 1, stop
                self._matched[which] = matched
        return None


def _borders(word: str) -> list[int]:
    """For each prefix of `word`, the length of its longest proper prefix that is also its end."""
    out = [0] * len(word)
    matched = 0
    for i in range(1, len(word)):
        while matched and word[matched] != word[i]:
            matched = out[matched - 1]
        if word[matched] == word[i]:
            matched += 1
        out[i] = matched
    return out


TextDecoder = BytesDecoder | WindowDecoder


class Detokenizer:
    """Text of one request. Text that could still become a stop string is held back; cost is linear in the text."""

    __slots__ = ("_decoder", "_held", "_include_stop", "_matcher", "_parts", "stopped_by")

    def __init__(self, decoder: TextDecoder, stop: tuple[str, ...] = (), *, include_stop: bool = False) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stop) if stop else None
        self._include_stop = include_stop
        self._held = ""
        self._parts: list[str] = []
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """Everything given out so far."""
        return "".join(self._parts)

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """Text that `token` lets go. If it completes a stop string, the text ends there and `stopped_by` is set.

        Stop strings are looked for only in text that came while `may_stop` was true.
        """
        text = self._decoder.push(token)
        return self._take(text) if may_stop else self._give(self._held + text, "")

    def finish(self) -> str:
        """The rest of the text, once the last token has been pushed."""
        return self._take(self._decoder.flush()) + self._give(self._held, "")

    def _take(self, new: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + new
        if self._matcher is None:
            return self._give(text, "")
        hit = self._matcher.feed(new)
        if hit is not None:
            read, self.stopped_by = hit
            end = len(self._held) + read
            return self._give(text[: end if self._include_stop else end - len(self.stopped_by)], "")
        end = len(text) - self._matcher.held
        return self._give(text[:end], text[end:])

    def _give(self, text: str, held: str) -> str:
        self._held = held
        if text:
            self._parts.append(text)
        return text


class MarkedDetokenizer(Detokenizer):
    """A detokenizer that leaves special tokens out but for some, the marks of a structure in the text.

    A mark's text comes as one piece. Stop strings are looked for in the text between marks, so the letters of a mark
    are never one, unless a stop string is just the mark.
    """

    __slots__ = ("_marks", "_stops")

    def __init__(
        self, decoder: TextDecoder, marks: Mapping[int, str], stop: tuple[str, ...] = (), *, include_stop: bool = False
    ) -> None:
        super().__init__(decoder, stop, include_stop=include_stop)
        self._marks = marks
        self._stops = stop

    def push(self, token: int, *, may_stop: bool = True) -> str:
        mark = self._marks.get(token)
        if mark is None or self.stopped_by is not None:
            return super().push(token, may_stop=may_stop)
        rest = self._decoder.flush()
        before = self._take(rest) if may_stop else self._give(self._held + rest, "")
        return before + self._give(self._held + self._shown(mark, may_stop), "")

    def _shown(self, mark: str, may_stop: bool) -> str:
        """What the text gets of `mark`, after which stop strings begin anew."""
        if self.stopped_by is not None:  # in the text before it
            return ""
        self._matcher = StopMatcher(self._stops) if self._stops else None
        if not may_stop or mark not in self._stops:
            return mark
        self.stopped_by = mark
        return mark if self._include_stop else ""


def make_detokenizer(
    tokenizer: Tokenizer,
    *,
    prompt: Sequence[int] = (),
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    skip_special: bool = True,
    kept: Iterable[int] = (),
) -> Detokenizer:
    """A detokenizer for what follows `prompt`, with the fastest decoder that `tokenizer` allows.

    kept: special tokens that are not skipped in any case.
    """
    decoder: TextDecoder
    if tokenizer.bytes is not None:
        decoder = BytesDecoder(tokenizer.bytes, tokenizer.special_ids if skip_special else frozenset())
    else:
        decoder = WindowDecoder(tokenizer, skip_special=skip_special, context=prompt)
    marks = {i: tokenizer.token(i) or "" for i in kept if i in tokenizer.special_ids} if skip_special else {}
    if marks:
        return MarkedDetokenizer(decoder, marks, stop, include_stop=include_stop)
    return Detokenizer(decoder, stop, include_stop=include_stop)
