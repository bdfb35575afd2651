"""Token ids of a rendered conversation: control tokens come from the template alone.

The text is tokenized as one string, so ordinary text has the ids that it always had. If more control tokens come out
than the template wrote, a client's text holds the spelling of one. Then the template's own are put into the text as
private tokens of a copy of the tokenizer that takes every other spelling of a control token for plain text.
"""

from __future__ import annotations

import copy
import re
import secrets
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import tokenizers

from inferir.ir.errors import RequestError
from inferir.runtime.text.tokenizer import Tokenizer
from inferir.runtime.text.traced_text import Span, plain, spans

_MARKER = re.compile(r"[<\[{(|].*[>\]})|]", re.DOTALL)
MAX_BREAKS = 16
_BREAK = tokenizers.AddedToken("", normalized=False)


@dataclass(frozen=True)
class _Found:
    """A token that stands in the text from `start` to `end`."""

    start: int
    end: int
    id: int


class PromptEncoder:
    """Control tokens are added tokens that are special or end a text (`end_ids`), and those in brackets of any kind
    that a template of the model writes (`sources`). The latter stay tokens in the model's own words of earlier answers,
    where they mark reasoning and calls. Blanks are never control tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_ids: Collection[int] = (),
        sources: Collection[str] = (),
        *,
        data_may_control: bool = False,
    ) -> None:
        """data_may_control: leave it to the tokenizer what becomes a control token."""
        self._tokenizer = tokenizer
        self._data_may_control = data_may_control
        self._guard: _Guard | None = None
        self._lock = threading.Lock()
        self._added = {i: t for i, t in tokenizer.backend.get_added_tokens_decoder().items() if t.content}
        # Control tokens whoever writes them, those that the model's own words may hold, and special tokens of blanks.
        hard = {i for i, t in self._added.items() if t.content.strip() and (t.special or i in end_ids)}
        marks = {i: t.content for i, t in self._added.items() if i not in hard and _MARKER.fullmatch(t.content)}
        self._soft = {i for i, mark in marks.items() if any(mark in source for source in sources)}
        self._control = frozenset(hard | self._soft)
        self._kept = {i for i, t in self._added.items() if t.special and i not in self._control}
        self._spellings = _Spellings({t.content: i for i, t in self._added.items()})

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text; what its spans hold is data. Raises `RequestError` for data that must become control."""
        ids = self._tokenizer.encode(plain(text), add_special_tokens=add_special_tokens, field="messages")
        given = spans(text)
        if self._data_may_control or not given or not self._control:
            return ids
        written = [f for f in self._written(plain(text), given) if f.id in self._control]
        if [i for i in ids if i in self._control] == [f.id for f in written]:
            return ids
        tokens, tainted = self._sorted(plain(text), given, add_special_tokens)
        if not tainted:
            return ids
        tokens += [f for f in written if not any(t.start < f.end and f.start < t.end for t in tokens)]
        with self._lock:
            if self._guard is None:
                self._guard = _Guard(self._tokenizer, self._added, self._control)
            return self._guard.encode(plain(text), sorted(tokens, key=lambda f: f.start), add_special_tokens)

    def _written(self, text: str, given: tuple[Span, ...]) -> Iterator[_Found]:
        """Added tokens in the template's own text."""
        at = 0
        for start, end, _ in (*given, (len(text), len(text), ())):
            yield from self._spellings.find(text, at, start)
            at = end

    def _sorted(self, text: str, given: tuple[Span, ...], special: bool) -> tuple[list[_Found], list[_Found]]:
        """The control tokens that the tokenizer sees in a text: those that may stay, and those that data spell."""
        (encoding,) = self._tokenizer.backend.encode_batch([text], add_special_tokens=special)
        stay: list[_Found] = []
        tainted: list[_Found] = []
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if start == end or (i not in self._control and i not in self._kept):
                continue
            if i in self._kept:
                stay.append(_Found(start, end, i))
                continue
            found = _core(text, start, end, i)
            if i == self._tokenizer.unknown_id and text[found.start : found.end] != self._added[i].content:
                continue  # text that the vocabulary has no token for
            over = [origins for a, b, origins in given if a < found.end and found.start < b]
            own = i in self._soft and all(origin.own for origins in over for origin in origins)
            (stay if own or not over else tainted).append(found)
        return stay, tainted


class _Spellings:
    """Finds added tokens in a text as the tokenizer does: the leftmost, and of those the longest."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def find(self, text: str, start: int, end: int) -> Iterator[_Found]:
        while self._first is not None and (hit := self._first.search(text, start, end)) is not None:
            at = hit.start()
            start = at + 1
            for size in self._lengths[hit[0]]:
                index = self._ids.get(text[at : at + size]) if at + size <= end else None
                if index is not None:
                    yield _Found(at, at + size, index)
                    start = at + size
                    break


class _Guard:
    """A copy of a tokenizer in which the spelling of a control token is text, and private tokens stand for them."""

    def __init__(self, tokenizer: Tokenizer, added: dict[int, tokenizers.AddedToken], control: frozenset[int]) -> None:
        self._backend = copy.deepcopy(tokenizer.backend)
        self._backend.no_truncation()
        self._backend.no_padding()
        # Tokens that are not special yet must be for the next line to concern them.
        self._backend.add_special_tokens([t for i, t in added.items() if i in control and not t.special])
        self._backend.encode_special_tokens = True
        self._added = added
        self._control = control
        self._unknown = tokenizer.unknown_id
        self._secret = secrets.token_hex(16)
        self._ids: dict[int, int] = {}
        self._break = self._private("break", None)

    def encode(self, text: str, tokens: list[_Found], special: bool) -> list[int]:
        """Ids of a text with control tokens at `tokens`, in order, and nowhere else."""
        breaks: set[int] = set()
        for _ in range(MAX_BREAKS):
            guarded, places = self._guarded(text, tokens, breaks)
            (encoding,) = self._backend.encode_batch([guarded], add_special_tokens=special)
            if sum(i in self._ids for i in encoding.ids) != len(tokens):
                break
            wrong = [
                _core(guarded, start, end, i)
                for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
                if i in self._control and i != self._unknown and start < end
            ]
            if not wrong:
                return [self._ids.get(i, i) for i in encoding.ids if i != self._break]
            # The vocabulary itself has the spelling, as that of word lists does: keep its characters apart.
            if any(f.end - f.start < 2 for f in wrong):
                break
            breaks |= {places[f.start] + 1 for f in wrong}
        raise RequestError(
            "the messages hold the spelling of a control token that cannot be written as text", "messages"
        )

    def _guarded(self, text: str, tokens: list[_Found], breaks: set[int]) -> tuple[str, list[int]]:
        """The text with private tokens, and where each of its characters stands in `text`."""
        parts: list[str] = []
        places: list[int] = []
        edits = sorted([*((f.start, f.end, f.id) for f in tokens), *((b, b, -1) for b in breaks)])
        at = 0
        for start, end, index in [*edits, (len(text), len(text), None)]:
            sign = "" if index is None else self._spelling("break" if index < 0 else str(index))
            if index is not None and index >= 0:
                self._private(str(index), index)
            parts += (text[at:start], sign)
            places += (*range(at, start), *[start] * len(sign))
            at = end
        return "".join(parts), places

    def _spelling(self, name: str) -> str:
        return f"\ue000{self._secret}{name}\ue001"

    def _private(self, name: str, index: int | None) -> int:
        """The id here of the private token for `index`, which takes blanks beside it as the real one does."""
        spelling = self._spelling(name)
        known = self._backend.token_to_id(spelling)
        if known is not None:
            return known
        like = _BREAK if index is None else self._added[index]
        form = {name: getattr(like, name) for name in ("normalized", "lstrip", "rstrip", "single_word")}
        token = tokenizers.AddedToken(spelling, special=False, **form)
        self._backend.add_tokens([token])
        made = self._backend.token_to_id(spelling)
        assert made is not None
        if index is not None:
            self._ids[made] = index
        return made


def _core(text: str, start: int, end: int, index: int) -> _Found:
    """A token without the blanks beside it that it may have taken."""
    shown = text[start:end]
    left = start + len(shown) - len(shown.lstrip())
    return _Found(left, max(left, start + len(shown.rstrip())), index)
