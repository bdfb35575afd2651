"""From the rules of a GBNF grammar to Lark rules for the core, with the same texts.

The core reads text in two stages. Its lexer joins characters to *terminals* as long as it can, and its parser sees
terminals only; so `[a-z]* "b"` written as two terminals allows no "ab". A GBNF grammar knows no such stages. What is
regular as a whole is one terminal, which is exact. In recursive rules the largest regular parts are terminals as long
as this changes nothing: no text of a terminal may go on, as part of the same or another one, with a character that may
also follow it. Where one might, the longer terminal is taken apart, down to single characters, which is slower.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from inferir.runtime.structured.gbnf import Alt, Chars, Node, Ref, Repeat, Seq, Text, children, names, users

MAX_WORK = 200_000
"""Pairs of positions that are compared at most; beyond, recursive rules are read character by character."""


@dataclass(frozen=True)
class Term:
    """A regular expression that the lexer reads."""

    node: Node


@dataclass(frozen=True)
class _Positions:
    """The positions of a regular expression: characters as bits, where texts start and end, what comes next."""

    chars: list[int]
    first: list[int]
    last: set[int]
    follow: list[set[int]]
    nullable: bool


class _TooMuchWorkError(Exception):
    pass


def to_lark(rules: dict[str, Node]) -> str:
    """Lark rules, whose start is `start`, for the checked rules of a grammar."""
    return _Converter(rules).convert()


class _Converter:
    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._regular = _regular_rules(rules)
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
                left += _names(built[name])
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
        terms = list(dict.fromkeys(t for node in built.values() for t in _terms(node)))
        if len(built) == 1 and isinstance(built["root"], Term):
            return None
        alphabet = _Alphabet(self._rules.values())
        positions = {t: self._positions(t.node, alphabet) for t in terms}
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

    def _positions(self, node: Node, alphabet: _Alphabet) -> _Positions:
        made = _Positions([], [], set(), [], False)
        nullable, first, last = self._place(node, alphabet, made, 0)
        return _Positions(made.chars, sorted(first), last, made.follow, nullable)

    def _place(self, node: Node, alphabet: _Alphabet, made: _Positions, depth: int) -> tuple[bool, set[int], set[int]]:
        """Add the positions of `node`; whether it may be empty, and its first and last positions."""
        if depth > 300 or len(made.chars) > MAX_WORK // 50:
            raise _TooMuchWorkError
        match node:
            case Ref(name):
                return self._place(self._rules[name], alphabet, made, depth + 1)
            case Chars():
                return self._position(alphabet.bits(node), made)
            case Text(text):
                parts: Iterable[tuple[bool, set[int], set[int]]] = (
                    self._position(alphabet.bits(Chars(((ord(c), ord(c)),))), made) for c in text
                )
                return _chain(parts, made)
            case Seq(items):
                return _chain((self._place(i, alphabet, made, depth + 1) for i in items), made)
            case Alt(options):
                all_of = [self._place(o, alphabet, made, depth + 1) for o in options]
                return (
                    any(n for n, _, _ in all_of),
                    set().union(*(f for _, f, _ in all_of)),
                    set().union(*(e for _, _, e in all_of)),
                )
            case Repeat(item, low, high):  # as if it could go on without end, which is on the safe side
                nullable, first, last = self._place(item, alphabet, made, depth + 1)
                if high != 1:
                    for p in last:
                        made.follow[p] |= first
                return nullable or low == 0, first, last

    @staticmethod
    def _position(bits: int, made: _Positions) -> tuple[bool, set[int], set[int]]:
        made.chars.append(bits)
        made.follow.append(set())
        at = len(made.chars) - 1
        return False, {at}, {at}

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


def _chain(parts: Iterable[tuple[bool, set[int], set[int]]], made: _Positions) -> tuple[bool, set[int], set[int]]:
    nullable, first, last = True, set[int](), set[int]()
    for empty, starts, ends in parts:
        for p in last:
            made.follow[p] |= starts
        if nullable:
            first |= starts
        last = last | ends if empty else ends
        nullable = nullable and empty
    return nullable, first, last


def _followers(built: dict[str, Any], positions: dict[Term, _Positions]) -> dict[Term, int]:
    """For each terminal, the characters that may follow it."""
    first: dict[str, int] = dict.fromkeys(built, 0)
    empty: dict[str, bool] = dict.fromkeys(built, False)

    def start(node: Any) -> tuple[int, bool]:
        match node:
            case Term():
                found = positions[node]
                bits = 0
                for p in found.first:
                    bits |= found.chars[p]
                return bits, found.nullable
            case Ref(name):
                return first[name], empty[name]
            case Seq(items):
                bits = 0
                for item in items:
                    more, nullable = start(item)
                    bits |= more
                    if not nullable:
                        return bits, False
                return bits, True
            case Alt(options):
                made = [start(o) for o in options]
                bits = 0
                for more, _ in made:
                    bits |= more
                return bits, any(n for _, n in made)
            case Repeat(item, low):
                bits, nullable = start(item)
                return bits, nullable or low == 0
        return 0, True

    while True:
        made = {name: start(node) for name, node in built.items()}
        if all((first[n], empty[n]) == v for n, v in made.items()):
            break
        first, empty = {n: v[0] for n, v in made.items()}, {n: v[1] for n, v in made.items()}

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


def _names(node: Any) -> list[str]:
    if isinstance(node, Term):
        return []
    return [node.name] if isinstance(node, Ref) else [n for c in children(node) for n in _names(c)]


def _terms(node: Any) -> list[Term]:
    return [node] if isinstance(node, Term) else [t for c in children(node) for t in _terms(c)]


def _regular_rules(rules: dict[str, Node]) -> set[str]:
    """Names of rules that lead to no recursion."""
    used_by, regular = users(rules), set[str]()
    missing = {name: len(names(node)) for name, node in rules.items()}
    left = [name for name, count in missing.items() if not count]
    while left:
        name = left.pop()
        regular.add(name)
        for user in used_by[name]:
            missing[user] -= 1
            if not missing[user]:
                left.append(user)
    return regular


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
