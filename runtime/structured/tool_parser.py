"""Reading tool calls from generated text as it comes.

A parser is fed pieces of text and gives events: content, the start of a call with its name, and fragments of the text
of its arguments, exactly as the model wrote them. However the text is cut into pieces, the joined events are the same.
What looks like a call but turns out not to be one is content, unless its name has been given out before; then the call
stands with the arguments written so far, as it does when a text ends inside a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from inferir.runtime.text.tool_style import Style

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
MAX_HEAD = 512
_BLANK = " \n\r\t"
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_OPEN_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*\\?')
_HEAD: tuple[tuple[str, ...], ...] = (
    ("{",),
    ('"name"',),
    (":",),
    (),  # the name
    (",",),
    ('"arguments"', '"parameters"'),
    (":",),
    ("{",),
)


@dataclass(frozen=True)
class Content:
    """Text that is no call."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """Call number `index` (from 0) of the text, to the function `name`."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of the JSON text of call `index`'s arguments."""

    index: int
    text: str


Event = Content | CallStart | CallArguments
_Mode = Literal["content", "head", "arguments", "tail", "plain"]


class ToolParser:
    """An incremental parser of one text in one style. names: functions that exist; a call to another is content.

    hidden: tags that content leaves out, because they are special tokens. calls: calls that were begun.
    """

    def __init__(self, style: Style, names: frozenset[str], hidden: Collection[str] = ()) -> None:
        self._style = style
        self._names = names
        self._hidden = hidden
        self._mode: _Mode = "content" if style == "hermes" else "head"
        self._text = ""  # not given out yet
        self._object = _ObjectEnd()
        self._opened = ""  # what introduced the call that is being read, in case it is content
        self._listed = False
        self._after_call = False
        self.calls = 0

    def feed(self, text: str) -> list[Event]:
        """Events that `text` completes."""
        self._text += text
        return _joined(self._run(final=False))

    def finish(self) -> list[Event]:
        """The rest, once the text has ended."""
        return _joined(self._run(final=True))

    def _run(self, *, final: bool) -> list[Event]:
        events: list[Event] = []
        steps = {
            "content": self._content,
            "head": self._head,
            "arguments": self._arguments,
            "tail": self._tail,
            "plain": self._plain,
        }
        while self._text or final:
            before = (self._mode, len(self._text))
            steps[self._mode](events, final)
            if (self._mode, len(self._text)) == before:
                break
        return events

    def _content(self, events: list[Event], final: bool) -> None:
        """Up to the next opening tag. Blanks before it are dropped, so they are held back, as is a beginning of it."""
        self._drop_blanks()
        at = self._text.find(OPEN)
        close = self._text.find(CLOSE, 0, at if at >= 0 else len(self._text)) if CLOSE in self._hidden else -1
        if close >= 0:
            rest = self._text[close + len(CLOSE) :]
            self._give(events, close)
            self._text = rest
        elif at >= 0:
            kept = len(self._text[:at].rstrip(_BLANK))
            self._opened = self._text[kept : at + len(OPEN)]
            rest = self._text[at + len(OPEN) :]
            self._give(events, kept)
            self._text, self._mode = rest, "head"
        elif final:
            self._give(events, len(self._text))
        else:
            tags = (OPEN, CLOSE) if CLOSE in self._hidden else (OPEN,)
            known = self._text[: len(self._text) - max(_overlap(self._text, tag) for tag in tags)]
            self._give(events, len(known.rstrip(_BLANK)))

    def _head(self, events: list[Event], final: bool) -> None:
        """The start of a call object up to its arguments."""
        if self._style == "json" and not self._opened:
            start = self._text.lstrip(_BLANK)
            if start.startswith("[") and len(self._text) - len(start) < MAX_HEAD:
                self._opened = self._text[: len(self._text) - len(start) + 1]
                self._text, self._listed = start[1:], True
                return
        head = _scan_head(self._text)
        name, end = head or ("", 0)
        if name in self._names:
            events.append(CallStart(self.calls, name))
            self._text = self._text[end:]
            self._object, self._opened, self._mode = _ObjectEnd(), "", "arguments"
            self.calls += 1
        elif final or head is None or name:
            self._not_a_call(events)

    def _not_a_call(self, events: list[Event]) -> None:
        """What was held back is content; in the json style, so is all that follows."""
        shown = self._opened.removesuffix(OPEN) if OPEN in self._hidden else self._opened
        if shown:
            events.append(Content(shown))
        self._opened, self._mode = "", "content" if self._style == "hermes" else "plain"
        self._after_call = False

    def _arguments(self, events: list[Event], final: bool) -> None:
        """Up to the brace that closes the arguments."""
        end = self._object.feed(self._text)
        piece = self._text if end is None else self._text[:end]
        if piece:
            events.append(CallArguments(self.calls - 1, piece))
        self._text = self._text[len(piece) :]
        if end is not None:
            self._mode = "tail"

    def _tail(self, events: list[Event], final: bool) -> None:
        """What closes a call: a brace, then the closing tag, or the comma or bracket of a list. Blanks are dropped."""
        text = self._text.lstrip(_BLANK)
        closed = text.startswith("}")
        if not closed:
            if text or final:
                self._end_call(text)
            return
        rest = text[1:].lstrip(_BLANK)
        if self._style == "hermes":
            if rest.startswith(CLOSE):
                self._end_call(rest[len(CLOSE) :])
            elif final or not CLOSE.startswith(rest):
                self._end_call(rest)
        elif self._listed and rest.startswith(","):
            self._text, self._opened, self._mode = rest[1:], ",", "head"
        elif rest or final:
            self._end_call(rest.removeprefix("]") if self._listed else rest)

    def _end_call(self, rest: str) -> None:
        self._text, self._after_call = rest, True
        self._mode = "content" if self._style == "hermes" else "plain"

    def _plain(self, events: list[Event], final: bool) -> None:
        self._drop_blanks()
        self._give(events, len(self._text))

    def _drop_blanks(self) -> None:
        """Blanks after a call are no content."""
        if self._after_call:
            self._text = self._text.lstrip(_BLANK)
            self._after_call = not self._text

    def _give(self, events: list[Event], end: int) -> None:
        if end > 0:
            events.append(Content(self._text[:end]))
            self._text = self._text[end:]


class _ObjectEnd:
    """Finds the end of a JSON object, piece by piece, by its braces outside of strings."""

    _MARKS = re.compile(r'["{}\[\]\\]')

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escape = False

    def feed(self, text: str) -> int | None:
        """Characters of `text` up to and with the closing brace; None if it is not there yet."""
        i = 0
        if self._escape and text:
            self._escape, i = False, 1
        while (found := self._MARKS.search(text, i)) is not None:
            i, mark = found.end(), found[0]
            if self._string:
                if mark == '"':
                    self._string = False
                elif mark == "\\":
                    if i == len(text):
                        self._escape = True
                    i += 1
            elif mark == '"':
                self._string = True
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i
        return None


def _scan_head(text: str) -> tuple[str, int] | None:
    """The name in the start of a call object at the beginning of `text`, empty while more text is needed, and where the
    arguments begin; None if it cannot be one, whatever follows.
    """
    at, name = 0, ""
    for options in _HEAD:
        at = len(text) - len(text[at:].lstrip(_BLANK))
        if not options:
            found = _STRING.match(text, at)
            if found is None:
                return _more(text) if at == len(text) or _OPEN_STRING.fullmatch(text, at) else None
            name, at = _decoded(found[0]), found.end()
            if not name:
                return None
            continue
        hit = next((o for o in options if text.startswith(o, at)), None)
        if hit is None:
            return _more(text) if any(o.startswith(text[at:]) for o in options) else None
        at += len(hit)
    return (name, at - 1) if at <= MAX_HEAD else None


def _more(text: str) -> tuple[str, int] | None:
    return ("", 0) if len(text) < MAX_HEAD else None


def _decoded(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)


def _joined(events: list[Event]) -> list[Event]:
    """Events with neighbours of the same kind joined."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Content) and isinstance(last, Content):
            out[-1] = Content(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            out[-1] = CallArguments(event.index, last.text + event.text)
        else:
            out.append(event)
    return out
