"""Regexes: the dialect in which they are read, and what of it is refused by name.

The dialect is that of Rust's `regex` crate, as llguidance reads it, but for `\\d` and `\\w`, which are ASCII as in
ECMAScript: `.` is anything but a line feed, `\\s` any white space, `\\p{...}` a Unicode class; there are sets as in
`[a-z&&[^b]]` and POSIX classes as in `[[:digit:]]`. The whole text must match, so `^` and `\\A` at the start and `$`
and `\\z` at the end change nothing; lazy quantifiers allow the same texts as greedy ones.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\\(?:[pPxuU]\{[^}]*\}|.)|\[\^?\]?|\((?:\?(?:[a-zA-Z-]+[:)]|[:=!>]|P?<))?|\{\d*,?\d*\}|[*+?)|\]]|.", re.DOTALL
)
_QUANTIFIER = re.compile(r"[*+?]|\{\d*,?\d*\}")
_ESCAPED = {"/": "\\/", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CLASSES = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]"}  # as the core reads a schema's
_POINT = re.compile(r"lookarounds not supported yet; (\w+)")
_POINTS = {
    "Start": "^ or \\A that is not at the start",
    "End": "$ or \\z that is not at the end",
    "StartLF": "^ under (?m)",
    "EndLF": "$ under (?m)",
    "StartCRLF": "^ under (?m)",
    "EndCRLF": "$ under (?m)",
    "WordAscii": "\\b",
    "WordUnicode": "\\b",
    "WordAsciiNegate": "\\B",
    "WordUnicodeNegate": "\\B",
}


def check_regex(pattern: str) -> str | None:
    """What of `pattern` is not supported although the core would read it in its own way; None for nothing.

    Quantifiers of quantifiers are possessive in other dialects, and `(?x)` changes what blanks mean.
    """
    depth = 0  # of sets
    quantified = lazy = False
    for found in _TOKEN.finditer(pattern):
        part = found[0]
        if depth:
            depth += (part[0] == "[") - (part == "]")
            continue
        if part == "\\":
            return "it ends in a lone backslash"
        if part[0] == "[":
            depth, quantified, lazy = 1, False, False
        elif _QUANTIFIER.fullmatch(part):
            if quantified and (part != "?" or lazy):
                return f"{pattern[: found.end()][-8:]!r} repeats a repetition, which is not supported; use a group"
            quantified, lazy = True, quantified
        else:
            if part in ("(?=", "(?!") or pattern.startswith(("(?<=", "(?<!"), found.start()):
                kind = "look-behind" if part == "(?<" else "look-ahead"
                return f"{kind} is not supported: {pattern[found.start() :][:8]!r}"
            if part.startswith("(?") and "x" in part:
                return f"the flag x in {part!r} is not supported"
            quantified = lazy = False
    return None


def terminal(pattern: str) -> str:
    """A checked regex as a Lark terminal."""
    out, escaped = [], False
    for c in pattern:
        if escaped:
            out.append(_CLASSES.get(c) or _ESCAPED.get(c) or "\\" + c)
            escaped = False
        elif c == "\\":
            escaped = True
        else:
            out.append(_ESCAPED.get(c, c))
    return f"/{''.join(out)}/"


def reason(error: str) -> str | None:
    """What an error of the core says about a regex, in one line; None if it is about something else."""
    point = _POINT.search(error)
    if point is not None:
        name = _POINTS.get(point[1], "a word boundary" if point[1].startswith("Word") else point[1])
        return f"{name} is not supported"
    lines = error.split("\n")
    for i, line in enumerate(lines):
        if line.strip().startswith("error: ") and "regex parse error" in error:
            text = line.strip().removeprefix("error: ")
            marks = lines[i - 1]
            if i >= 2 and set(marks.strip()) == {"^"}:
                start = len(marks) - len(marks.lstrip())
                text += f": {lines[i - 2][start : len(marks.rstrip())]!r}"
            return text
    return None
