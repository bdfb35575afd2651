"""From the rules of a GBNF grammar to Lark rules for the core, with the same texts.

The core reads text in two stages. Its lexer joins characters to *terminals* as long as it can, and its parser sees
terminals only; so `[a-z]* "b"` written as two terminals allows no "ab". A GBNF grammar knows no such stages. What is
regular as a whole is one terminal, which is exact. In recursive rules the largest regular parts are terminals as long
as this changes nothing: no text of a terminal may go on, as part of the same or another one, with a character that may
also follow it. Where one might, the longer terminal is taken apart, down to single characters, which is slower.
"""

from __future__ import annotations

import bisect
import functools
import json
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from inferir.runtime.structured.gbnf import Alt, Chars, Node, Ref, Repeat, Seq, Text, children, least, names

MAX_WORK = 200_000
"""Pairs of positions that are compared at most; beyond, recursive rules are read character by character."""


@dataclass(frozen=True)
class Term:
    """A regular expression that the lexer reads."""

    node: Node


class _TooMuchWorkError(Exception):
    pass


def to_lark(rules: dict[str, Node]) -> str:
    """Lark rules, whose start is `start`, for the checked rules of a grammar."""
    return _Converter(rules).convert()


class _Converter:
    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        used = {name: names(node) for name, node in rules.items()}
        self._regular = least(rules, lambda name, found: used[name] <= found)  # rules that lead to no recursion
        self._split: set[Node] = set()
        self._single = False
        self._work = 0

    def convert(self) -> str:
        while True:
            built = self._build_all()
            try:
                longer = self._conflict(built)
            except _TooMuchWorkError:
                self._single = True
                return _Writer(self._rules, self._build_all()).text()
            if longer is None:
                return _Writer(self._rules, built).text()
            self._split.add(longer)

    def _build_all(self) -> dict[str, Any]:
        built: dict[str, Any] = {}
        left = ["root"]
        while left:
            name = left.pop()
            if name not in built:
                built[name] = self._build(self._rules[name])
                left += [leaf.name for leaf in _leaves(built[name]) if isinstance(leaf, Ref)]
        return built

    def _is_regular(self, node: Node) -> bool:
        if isinstance(node, Ref):
            return node.name in self._regular
        return all(self._is_regular(c) for c in children(node))

    def _build(self, node: Node) -> Any:
        """`node` with terminals in it: a `Term`, or a node whose leaves are terminals and references."""
        whole = node is self._rules["root"] and self._is_regular(node)
        if whole or (self._is_regular(node) and node not in self._split and not self._parted(node)):
            return Term(node)
        match node:
            case Text(text):
                singles: list[Any] = [Term(Text(c)) for c in text]
                return Seq(tuple(singles))
            case Repeat(item, low, high):
                return Repeat(self._build(item), low, high)
            case Alt(options):
                return Alt(tuple(self._build(o) for o in options))
            case Seq(items):
                return Seq(tuple(self._build(i) for i in self._grouped(items)))
        return node

    def _parted(self, node: Node) -> bool:
        """Whether everything is read by single characters, and `node` is more than one."""
        return self._single and not isinstance(node, Chars) and not (isinstance(node, Text) and len(node.text) == 1)

    def _grouped(self, items: tuple[Node, ...]) -> Iterator[Node]:
        """Neighbours that are regular, joined, unless their joint form is to be taken apart."""
        run: list[Node] = []
        for item in (*items, None):
            if item is not None and self._is_regular(item):
                run.append(item)
                continue
            joint = Seq(tuple(run))
            if len(run) > 1 and len(run) < len(items) and joint not in self._split and not self._single:
                yield joint
            else:
                yield from run
            run = []
            if item is not None:
                yield item

    def _conflict(self, built: dict[str, Any]) -> Node | None:
        """A terminal that reads on where another one ends and the text goes on otherwise; None if there is none."""
        terms = list(dict.fromkeys(t for node in built.values() for t in _leaves(node) if isinstance(t, Term)))
        if len(built) == 1 and isinstance(built["root"], Term):
            return None
        alphabet = _Alphabet(self._rules.values())
        positions = {t: _Positions(t.node, self._rules, alphabet) for t in terms}
        if len(built) * len(built) > MAX_WORK:
            raise _TooMuchWorkError
        after = _followers(built, positions)
        for long in terms:
            if isinstance(long.node, Chars) or (isinstance(long.node, Text) and len(long.node.text) == 1):
                continue
            for short in terms:
                if self._reads_on(positions[short], positions[long], after.get(short, 0)):
                    return long.node
        return None

    def _reads_on(self, short: _Positions, long: _Positions, after: int) -> bool:
        """Whether a text of `short` begins one of `long` that goes on with a character of `after`."""
        goes_on = {q for q, nxt in enumerate(long.follow) if any(long.chars[r] & after for r in nxt)}
        if not goes_on or not after:
            return False
        left = [(p, q) for p in short.first for q in long.first if short.chars[p] & long.chars[q]]
        seen = set(left)
        while left:
            self._work += 1
            if self._work > MAX_WORK:
                raise _TooMuchWorkError
            p, q = left.pop()
            if p in short.last and q in goes_on:
                return True
            for a in short.follow[p]:
                for b in long.follow[q]:
                    if (a, b) not in seen and short.chars[a] & long.chars[b]:
                        seen.add((a, b))
                        left.append((a, b))
        return False


class _Alphabet:
    """Characters that a grammar never tells apart, as one bit each."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        starts = {0}
        left = list(nodes)
        while left:
            node = left.pop()
            left += children(node)
            if isinstance(node, Chars):
                starts |= {s for low, high in node.ranges for s in (low, high + 1)}
            elif isinstance(node, Text):
                starts |= {s for c in node.text for s in (ord(c), ord(c) + 1)}
        self._starts = sorted(starts)
        self._known: dict[Chars, int] = {}

    def bits(self, node: Chars) -> int:
        if node not in self._known:
            found = 0
            for low, high in node.ranges:
                start = bisect.bisect_right(self._starts, low) - 1
                end = bisect.bisect_right(self._starts, high)
                found |= (1 << end) - (1 << start)
            self._known[node] = found
        return self._known[node]


_Part = tuple[bool, set[int], set[int]]
"""Of a part of an expression: whether it may be empty, its first and its last positions."""


class _Positions:
    """The positions of a regular expression: characters as bits, where texts start and end, what comes next."""

    def __init__(self, node: Node, rules: dict[str, Node], alphabet: _Alphabet) -> None:
        self._rules = rules
        self._alphabet = alphabet
        self.chars: list[int] = []
        self.follow: list[set[int]] = []
        self.nullable, first, self.last = self._place(node, 0)
        self.first = sorted(first)
        self.starts = functools.reduce(operator.or_, (self.chars[p] for p in first), 0)

    def _place(self, node: Node, depth: int) -> _Part:
        """Add the positions of `node`."""
        if depth > 300 or len(self.chars) > MAX_WORK // 50:
            raise _TooMuchWorkError
        match node:
            case Ref(name):
                return self._place(self._rules[name], depth + 1)
            case Chars():
                return self._position(node)
            case Text(text):
                return self._chain(self._position(Chars(((ord(c), ord(c)),))) for c in text)
            case Seq(items):
                return self._chain(self._place(i, depth + 1) for i in items)
            case Alt(options):
                empty, first, last = zip(*(self._place(o, depth + 1) for o in options), strict=True)
                return any(empty), set().union(*first), set().union(*last)
            case Repeat(item, low, high):  # as if it could go on without end, which is on the safe side
                nullable, starts, ends = self._place(item, depth + 1)
                if high != 1:
                    for p in ends:
                        self.follow[p] |= starts
                return nullable or low == 0, starts, ends

    def _position(self, node: Chars) -> _Part:
        at = len(self.chars)
        self.chars.append(self._alphabet.bits(node))
        self.follow.append(set())
        return False, {at}, {at}

    def _chain(self, parts: Iterable[_Part]) -> _Part:
        nullable, first, last = True, set[int](), set[int]()
        for empty, starts, ends in parts:
            for p in last:
                self.follow[p] |= starts
            if nullable:
                first |= starts
            last = last | ends if empty else ends
            nullable = nullable and empty
        return nullable, first, last


def _followers(built: dict[str, Any], positions: dict[Term, _Positions]) -> dict[Term, int]:
    """For each terminal, the characters that may follow it."""
    known: dict[str, tuple[int, bool]] = dict.fromkeys(built, (0, False))

    def start(node: Any) -> tuple[int, bool]:
        """The characters that `node` may start with, and whether it may be empty."""
        match node:
            case Term():
                return positions[node].starts, positions[node].nullable
            case Ref(name):
                return known[name]
            case Alt(options):
                bits, empty = zip(*map(start, options), strict=True)
                return functools.reduce(operator.or_, bits), any(empty)
            case Repeat(item, low):
                first, nullable = start(item)
                return first, nullable or low == 0
        found = 0
        for item in children(node):
            more, nullable = start(item)
            found |= more
            if not nullable:
                return found, False
        return found, True

    while (made := {name: start(node) for name, node in built.items()}) != known:
        known = made

    after: dict[object, int] = {}
    changed = True

    def visit(node: Any, bits: int) -> None:
        nonlocal changed
        key = node.name if isinstance(node, Ref) else node
        if isinstance(node, Ref | Term) and bits & ~after.get(key, 0):
            after[key] = after.get(key, 0) | bits
            changed = True
        match node:
            case Seq(items):
                for item in reversed(items):
                    visit(item, bits)
                    more, nullable = start(item)
                    bits = more | (bits if nullable else 0)
            case Alt(options):
                for option in options:
                    visit(option, bits)
            case Repeat(item, _, high):
                visit(item, bits if high == 1 else bits | start(item)[0])

    while changed:
        changed = False
        for name, node in built.items():
            visit(node, after.get(name, 0))
    return {key: bits for key, bits in after.items() if isinstance(key, Term)}


def _leaves(node: Any) -> Iterator[Term | Ref]:
    if isinstance(node, Term | Ref):
        yield node
    else:
        for child in children(node):
            yield from _leaves(child)


class _Writer:
    """Writes rules as `r0` … and terminals as `T0` …; rules that terminals use as `U0` …"""

    def __init__(self, rules: dict[str, Node], built: dict[str, Any]) -> None:
        self._rules = rules
        self._built = built
        self._rule_names = {name: f"r{i}" for i, name in enumerate(built)}
        self._terms: dict[Term, str] = {}
        self._used: dict[str, str] = {}
        self._lines: list[str] = []

    def text(self) -> str:
        rules = [f"{self._rule_names[name]}: {self._write(node)}" for name, node in self._built.items()]
        self._lines = [f"{name}: {self._write(term.node, inside=True)}" for term, name in self._terms.items()]
        written: set[str] = set()
        while left := self._used.keys() - written:  # writing one may use others
            for name in sorted(left):
                self._lines.append(f"{self._used[name]}: {self._write(self._rules[name], inside=True)}")
            written |= left
        return "\n".join([f"start: {self._rule_names['root']}", *rules, *self._lines]) + "\n"

    def _write(self, node: Any, *, inside: bool = False) -> str:
        match node:
            case Term():
                return self._terms.setdefault(node, f"T{len(self._terms)}")
            case Ref(name):
                if inside:
                    return self._used.setdefault(name, f"U{len(self._used)}")
                return self._rule_names[name]
            case Text(text):
                return json.dumps(text)
            case Chars(ranges):
                return "/[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges) + "]/"
            case Seq(items):
                return "(" + " ".join(self._write(i, inside=inside) for i in items) + ")" if items else '""'
            case Alt(options):
                return "(" + " | ".join(self._write(o, inside=inside) for o in options) + ")"
            case Repeat(item, low, high):
                times = f"{{{low},{'' if high is None else high}}}"
                return f"({self._write(item, inside=inside)}){times}"
        raise AssertionError(node)
