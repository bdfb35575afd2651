"""Text that knows which of its characters a request gave, however a chat template puts it together.

A template's own text is plain `str`; what a client sends enters as `TracedText`, whose spans say where each part came
from. Operations that templates use on texts keep the spans exactly; any other marks its whole result, so that nothing
of a client's ever passes for the template's own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType
from typing import Any, SupportsIndex


@dataclass(frozen=True)
class Origin:
    """Where a piece of text comes from: `part` of a message, or of the request if `message` is None.

    own: the model's own words in an earlier answer.
    """

    message: int | None
    part: str
    own: bool = False


Span = tuple[int, int, tuple[Origin, ...]]
"""Start, end and origins of characters that a request gave."""

UNKNOWN = Origin(None, "unknown")


class TracedText(str):
    """A string with `Span`s in order; without any given, all of it is of unknown origin."""

    __slots__ = ("_spans",)
    _spans: tuple[Span, ...]

    def __new__(cls, text: str = "", spans: tuple[Span, ...] | None = None) -> TracedText:
        self = super().__new__(cls, text)
        self._spans = ((0, len(text), (UNKNOWN,)),) if spans is None else spans
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return concat([self] * operator.index(count))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return located(plain(self) % values, (self, values))

    def __rmod__(self, other: Any) -> str:
        return located(plain(other) % plain(self), (self,)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return cut(self, start, max(start, stop)) if step == 1 else marked(str.__getitem__(self, key), (self,))
        index = operator.index(key)
        str.__getitem__(self, index)  # the usual error
        index += len(self) if index < 0 else 0
        return cut(self, index, index + 1)

    def __iter__(self) -> Iterator[str]:
        return (cut(self, i, i + 1) for i in range(len(self)))


def plain(text: str) -> str:
    """The characters alone, as an ordinary string."""
    return str.__str__(text)


def trace(text: str, origin: Origin) -> str:
    """`text`, all of it from `origin`."""
    return TracedText(text, ((0, len(text), (origin,)),)) if text else ""


def spans(text: str) -> tuple[Span, ...]:
    """What of `text` a request gave."""
    return text._spans if isinstance(text, TracedText) else ()


def cut(text: str, start: int, end: int) -> str:
    """text[start:end], for 0 <= start <= end."""
    out = plain(text)[start:end]
    kept = tuple(
        (max(a, start) - start, min(b, end) - start, origins)
        for a, b, origins in spans(text)
        if max(a, start) < min(b, end)
    )
    return TracedText(out, kept) if kept else out


def concat(parts: Iterable[str]) -> str:
    """The parts one after the other."""
    parts = list(parts)
    found: list[Span] = []
    at = 0
    for part in parts:
        if isinstance(part, TracedText):
            found += [(a + at, b + at, origins) for a, b, origins in part._spans]
        at += len(part)
    out = str.join("", parts)
    return TracedText(out, tuple(found)) if found else out


def join(separator: str, parts: Iterable[str]) -> str:
    """As `separator.join(parts)`."""
    pieces: list[str] = []
    for i, part in enumerate(parts):
        if not isinstance(part, str):
            raise TypeError(f"sequence item {i}: expected str instance, {type(part).__name__} found")
        pieces += (separator, part) if i else (part,)
    return concat(pieces)


def replace(text: str, old: str, new: str, count: SupportsIndex = -1) -> str:
    """As `text.replace(old, new, count)`."""
    if not old:
        return str(marked(plain(text).replace(old, new, count), (text, new)))
    return join(new, _placed(text, plain(text).split(old, count), len(old)))


def origins_of(value: Any) -> tuple[Origin, ...]:
    """Origins of all texts inside a value, keys included."""
    found: dict[Origin, None] = {}
    _collect(value, found)
    return tuple(found)


def _collect(value: Any, found: dict[Origin, None]) -> None:
    if isinstance(value, TracedText):
        for _, _, origins in value._spans:
            found.update(dict.fromkeys(origins))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _collect(key, found)
            _collect(inner, found)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _collect(inner, found)
    elif isinstance(value, GeneratorType):  # what it would give cannot be seen without taking it
        found[UNKNOWN] = None


def marked(value: Any, sources: Any) -> Any:
    """A text that was made of `sources` in a way that is not followed: all of it counts as theirs."""
    if isinstance(value, list | tuple):
        return type(value)(marked(v, sources) for v in value)
    if not isinstance(value, str) or not value:
        return value
    origins = origins_of(sources)
    return TracedText(plain(value), ((0, len(value), origins),)) if origins else value


def located(value: str, sources: Any) -> str:
    """A formatted text: each source is looked for in it; if one is not there as it is, all of the text is marked."""
    found: list[Span] = []
    text = plain(value)
    for source in _texts(sources):
        if not source.strip():
            continue
        at = text.find(source)
        if at < 0:
            return str(marked(value, sources))
        while at >= 0:
            found.append((at, at + len(source), origins_of(source)))
            at = text.find(source, at + len(source))
    return TracedText(text, _merged(found)) if found else text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, TracedText):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_texts(key), *_texts(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _merged(found: list[Span]) -> tuple[Span, ...]:
    """Spans in order, with those that overlap joined."""
    out: list[Span] = []
    for start, end, origins in sorted(found, key=lambda s: s[:2]):
        if out and start < out[-1][1]:
            first, last, known = out[-1]
            out[-1] = (first, max(last, end), tuple(dict.fromkeys((*known, *origins))))
        else:
            out.append((start, end, origins))
    return tuple(out)


# What templates do with texts, beside the methods below.

_ELEMENTS = frozenset({"attr", "d", "default", "first", "join", "last", "max", "min", "random", "replace"})
"""Filters whose text is an element of what they are given, or which are exact themselves."""
_METHODS = frozenset({"lower", "string", "trim", "upper"})
"""Filters that call a method of the text they are given."""


def filtered(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any) -> Any:
    """The result of a filter, with its spans."""
    if not isinstance(value, str) or name in _ELEMENTS or name.startswith("_"):
        return value
    if name in _METHODS and any(isinstance(a, str) for a in args[:2]):  # some are given the context first
        return value
    sources = (args, dict(kwargs))
    return located(value, sources) if name == "format" else marked(value, sources)


def called(call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any) -> Any:
    """The result of a call, with its spans. Macros and methods of containers give what they hold."""
    owner = getattr(call, "__self__", None)
    if isinstance(owner, TracedText) and isinstance(call, MethodType):
        return value
    if not isinstance(value, str | list | tuple) or not (isinstance(owner, str) or isinstance(call, FunctionType)):
        return value
    sources = (args, dict(kwargs))
    if isinstance(value, str) and not isinstance(value, TracedText) and call.__name__ in ("format", "format_map"):
        return located(value, sources)
    return marked(value, sources) if origins_of(sources) else value


def exact_call(call: Any) -> Any:
    """Methods of plain texts that are followed exactly although their arguments are a client's."""
    owner = getattr(call, "__self__", None)
    if isinstance(call, BuiltinMethodType) and type(owner) is str and call.__name__ in ("join", "replace"):
        exact = join if call.__name__ == "join" else replace
        return functools.partial(exact, owner)
    return None


def combined(left: Any, right: Any, value: Any) -> Any:
    """The result of an operator that may not have kept spans."""
    if isinstance(value, str) and not isinstance(value, TracedText):
        return located(value, (left, right)) if origins_of((left, right)) else value
    return value


def shown(value: Any) -> Any:
    """What is written in place of a value: containers as Python shows them."""
    if isinstance(value, str) or value is None or not isinstance(value, Mapping | list | tuple | set | frozenset):
        return value
    return marked(str(value), value)


# Methods of texts. Each gives what the method of `str` gives, with spans.

_SPLIT = frozenset({"split", "rsplit", "splitlines", "partition", "rpartition"})
_STRIP = frozenset({"strip", "lstrip", "rstrip", "removesuffix"})
_SAME_LENGTH = frozenset({"capitalize", "casefold", "lower", "swapcase", "title", "upper"})


def _placed(text: str, pieces: Iterable[str], gap: int = 0) -> list[str]:
    """Pieces of `text` in order, each in its first place `gap` characters or more behind the one before."""
    out, at = [], 0
    for piece in pieces:
        at = str.find(text, piece, at)
        out.append(cut(text, at, at + len(piece)))
        at += len(piece) + gap
    return out


def _method(name: str) -> Callable[..., Any]:
    base = getattr(str, name)
    exact: Any = {"join": join, "replace": replace}.get(name)

    @functools.wraps(base)
    def method(self: TracedText, *args: Any, **kwargs: Any) -> Any:
        if exact is not None:
            return exact(self, *args, **kwargs)
        value = base(self, *args, **kwargs)
        if name in _SPLIT:
            separator = (*args, kwargs.get("sep"))[0] if name in ("split", "rsplit") else None
            return type(value)(_placed(self, value, len(separator or "")))
        if name in _STRIP:
            return _placed(self, [value])[0]
        if name == "removeprefix":
            return cut(self, len(self) - len(value), len(self))
        if name in _SAME_LENGTH and len(value) == len(self):
            return TracedText(value, self._spans)
        return marked(value, (self, args, kwargs))

    return method


for _name in dir(str):
    if not _name.startswith("_") and _name != "maketrans":
        setattr(TracedText, _name, _method(_name))
