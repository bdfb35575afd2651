"""Grammars in the GBNF notation: their rules, as trees.

A rule is `name ::= alternatives`; the start rule is `root`. Alternatives are sequences of "text", [character sets],
`.` (any character), names and (groups), each of which may be followed by `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}`. Line
breaks are blanks, and `#` starts a comment. In texts and sets, `\\n`, `\\r`, `\\t`, `\\xHH`, `\\uHHHH` and
`\\UHHHHHHHH` stand for a character, and a backslash before other punctuation is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_NESTING = 100
MAX_RULES = 2_000
MAX_REPEAT = 1_000_000
MAX_CODE = 0x10FFFF

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+|\#[^\n]*)|(?P<define>[A-Za-z0-9_-]+[ \t]*::=)|(?P<name>[A-Za-z0-9_-]+)
    |(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[\^?(?:[^\]\\\n]|\\.)*\])|(?P<times>\{\s*\d*\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[|()*+?.])""",
    re.VERBOSE,
)
_CHARACTER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_HINTS = {"<": "special tokens are not supported", "!": "special tokens are not supported", "'": 'texts stand in "..."'}
_TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]


class GbnfError(Exception):
    """What is wrong with a grammar, and in which line."""


@dataclass(frozen=True)
class Text:
    """Exactly this text, which is not empty."""

    text: str


@dataclass(frozen=True)
class Chars:
    """One character of `ranges`, sorted and apart."""

    ranges: Ranges


@dataclass(frozen=True)
class Ref:
    """What the rule `name` describes."""

    name: str


@dataclass(frozen=True)
class Seq:
    """One after the other; empty text without items."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alt:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """From `low` to `high` times (None: any number)."""

    item: Node
    low: int
    high: int | None


Node = Text | Chars | Ref | Seq | Alt | Repeat


def parse(text: str) -> dict[str, Node]:
    """The rules by name. Raises `GbnfError` for wrong syntax, rules that are missing or come twice, and recursion
    that never ends.
    """
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GbnfError("there is no rule root")
    if "root" not in least(rules, lambda name, found: _ends(rules[name], found)):
        raise GbnfError("it allows no text: its recursion never ends")
    return rules


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Seq(items):
            return items
        case Alt(options):
            return options
        case Repeat(item):
            return (item,)
    return ()


def names(node: Node) -> set[str]:
    """The rules that `node` refers to."""
    found: set[str] = set()
    left = [node]
    while left:
        part = left.pop()
        left += children(part)
        if isinstance(part, Ref):
            found.add(part.name)
    return found


def least(rules: dict[str, Node], holds: Callable[[str, set[str]], bool]) -> set[str]:
    """The least set of rules with every rule that `holds`, given the set, and that goes on to do so as it grows."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, node in rules.items():
        for used in names(node):
            users[used].append(name)
    found, left = set[str](), list(rules)
    while left:
        name = left.pop()
        if name not in found and holds(name, found):
            found.add(name)
            left += users[name]
    return found


def _ends(node: Node, endable: set[str]) -> bool:
    match node:
        case Ref(name):
            return name in endable
        case Alt(options):
            return any(_ends(o, endable) for o in options)
        case Repeat(item, low):
            return low == 0 or _ends(item, endable)
    return all(_ends(c, endable) for c in children(node))


@dataclass
class _Parser:
    text: str
    tokens: list[tuple[str, str, int]] = field(default_factory=list)
    at: int = 0
    references: dict[str, int] = field(default_factory=dict)

    def rules(self) -> dict[str, Node]:
        self._scan()
        rules: dict[str, Node] = {}
        while self.at < len(self.tokens):
            kind, part, where = self.tokens[self.at]
            if kind != "define":
                raise self._error(f"expected a rule, not {part[:20]!r}", where)
            name = part.removesuffix("::=").rstrip()
            if name in rules:
                raise self._error(f"the rule {name} is defined twice", where)
            if len(rules) == MAX_RULES:
                raise self._error(f"more than {MAX_RULES} rules", where)
            self.at += 1
            rules[name] = self._alternatives(0)
            if self._is(")"):
                raise self._error("')' without '('", self.tokens[self.at][2])
        for name, where in self.references.items():
            if name not in rules:
                raise self._error(f"there is no rule {name}", where)
        return rules

    def _scan(self) -> None:
        at = 0
        while at < len(self.text):
            found = _TOKEN.match(self.text, at)
            if found is None:
                part = self.text[at]
                hint = "it is not closed" if part in '"[{' else _HINTS.get(part, "it means nothing here")
                raise self._error(f"unexpected {part!r}: {hint}", at)
            if found.lastgroup != "blank":
                self.tokens.append((str(found.lastgroup), found[0], at))
            at = found.end()

    def _alternatives(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} groups within one another", self.tokens[self.at][2])
        options = [self._sequence(depth)]
        while self._is("|"):
            self.at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while self.at < len(self.tokens):
            kind, part, where = self.tokens[self.at]
            if kind == "define" or part in ("|", ")"):
                break
            self.at += 1
            if kind == "name":
                self.references.setdefault(part, where)
                items.append(Ref(part))
            elif kind == "text":
                text = "".join(map(chr, self._characters(part[1:-1], where)))
                items.append(Text(text) if text else Seq(()))
            elif kind == "set":
                items.append(self._set(part, where))
            elif part == ".":
                items.append(Chars(_without(((0, MAX_CODE),), (_SURROGATES,))))
            elif part == "(":
                items.append(self._alternatives(depth + 1))
                if not self._is(")"):
                    raise self._error("'(' is not closed", where)
                self.at += 1
            elif not items:
                raise self._error(f"nothing stands before {part!r}", where)
            elif self.tokens[self.at - 2][1] in _TIMES or self.tokens[self.at - 2][0] == "times":
                raise self._error(f"{part!r} repeats a repetition; put it into a group", where)
            else:
                items.append(self._repeat(items.pop(), part, where))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _repeat(self, item: Node, part: str, where: int) -> Node:
        if part in _TIMES:
            return Repeat(item, *_TIMES[part])
        low, comma, high = re.sub(r"\s", "", part[1:-1]).partition(",")
        if not low and not high:
            raise self._error(f"{part!r} has no number", where)
        first = int(low or 0)
        last = (int(high) if high else None) if comma else first
        if max(first, last or 0) > MAX_REPEAT:
            raise self._error(f"{part!r} repeats more than {MAX_REPEAT} times", where)
        if last is not None and last < first:
            raise self._error(f"{part!r} has more at least than at most", where)
        return Repeat(item, first, last)

    def _set(self, part: str, where: int) -> Node:
        negated = part.startswith("[^")
        codes = self._codes(part[2 if negated else 1 : -1], where)
        if not codes:
            raise self._error(f"{part!r} is empty", where)
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(codes):
            code = codes[at][0]
            if at + 2 < len(codes) and codes[at + 1] == (ord("-"), False):
                high = codes[at + 2][0]
                if high < code:
                    raise self._error(f"{part!r} has a range that ends before it starts", where)
                ranges.append((code, high))
                at += 3
            else:
                ranges.append((code, code))
                at += 1
        inside = _merged(ranges)
        left = _without(((0, MAX_CODE),), (*inside, _SURROGATES)) if negated else _without(inside, (_SURROGATES,))
        if not left:
            raise self._error(f"{part!r} matches no character", where)
        return Chars(left)

    def _characters(self, body: str, where: int) -> list[int]:
        codes = [code for code, _ in self._codes(body, where)]
        try:
            return list(map(ord, "".join(map(chr, codes)).encode("utf-16", "surrogatepass").decode("utf-16")))
        except UnicodeDecodeError:
            raise self._error("half of a surrogate pair, which no text can contain", where) from None

    def _codes(self, body: str, where: int) -> list[tuple[int, bool]]:
        """Characters, each with whether a backslash stands before it."""
        codes = []
        for found in _CHARACTER.finditer(body):
            *numbers, escaped, plain = found.groups()
            number = next((n for n in numbers if n is not None), None)
            if number is not None:
                code = int(number, 16)
                if code > MAX_CODE:
                    raise self._error(f"{found[0]} is no character", where)
            elif escaped is not None:
                if escaped.isalnum() and escaped not in _NAMED:
                    raise self._error(f"unknown escape {found[0]!r}", where)
                code = ord(_NAMED.get(escaped, escaped))
            else:
                code = ord(plain)
            codes.append((code, plain is None))
        return codes

    def _is(self, mark: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][:2] == ("mark", mark)

    def _error(self, message: str, where: int) -> GbnfError:
        return GbnfError(f"line {self.text.count(chr(10), 0, where) + 1}: {message}")


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _without(ranges: Ranges, holes: Ranges) -> Ranges:
    for first, last in holes:
        left = []
        for low, high in ranges:
            left += [(low, min(high, first - 1)), (max(low, last + 1), high)]
        ranges = tuple((a, b) for a, b in left if a <= b)
    return ranges
