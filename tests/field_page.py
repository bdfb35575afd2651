"""The table of fields as documents show it: `python tests/field_page.py [FILE]`.

Prints it, or writes it into FILE between the two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from inferir.server.openai.field_table import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE
from inferir.server.openai.kinds import DEPENDS, IDLE, OBEYED, REFUSED, Either, Field, Items, Kind, Off, Record, Tagged

BEGIN = "<!-- begin fields -->"
END = "<!-- end fields -->"
_EFFECTS = {
    OBEYED: "it does what it says",
    IDLE: "accepted, and nothing here could differ by it",
    REFUSED: "a 400 that names it, unless its value asks for nothing",
    DEPENDS: "obeyed, refused or warned about, as the row says",
}
_BODIES = {"completions": COMPLETIONS, "chat": CHAT, "tokenize": TOKENIZE, "detokenize": DETOKENIZE}


def rows(record: Record) -> Iterator[tuple[str, Field]]:
    """Every field of `record` at any depth, by its path: `a.b` is a key of an object, `a[].b` of each in a list."""
    for field in record.fields:
        yield field.name, field
        for path, inner in _inner(field.kind):
            yield field.name + path, inner


def _inner(kind: Kind) -> Iterator[tuple[str, Field]]:
    if isinstance(kind, Record):
        for path, field in rows(kind):
            yield f".{path}", field
    elif isinstance(kind, Items):
        for path, field in _inner(kind.of):
            yield f"[]{path}", field
    elif isinstance(kind, Either):
        for one in (kind.text, kind.items, kind.object):
            if one is not None:
                yield from _inner(one)
    elif isinstance(kind, Tagged):
        found: dict[str, tuple[Field, list[str]]] = {}
        for tag, record in kind.records.items():
            for path, field in rows(record):
                found.setdefault(path, (field, []))[1].append(tag)
        for path, (field, tags) in found.items():
            if len(tags) < len(kind.records):
                field = replace(field, note=f"{field.note}; {kind.key} {', '.join(f'`{t}`' for t in tags)}")
            yield f".{path}", field


def table() -> str:
    """The whole table in Markdown, with what its words mean."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for route, record in _BODIES.items():
        for path, field in rows(record):
            note = field.note
            if isinstance(field.kind, Off) and field.kind.values:
                note += f"; accepts {', '.join(f'`{json.dumps(v)}`' for v in field.kind.values)}"
            found.setdefault((path, field.effect, note), []).append(route)
    lines = [f"- *{effect}*: {meaning}" for effect, meaning in _EFFECTS.items()]
    lines += ["", "| field | routes | | |", "|---|---|---|---|"]
    lines += [f"| `{path}` | {', '.join(names)} | {effect} | {note} |" for (path, effect, note), names in found.items()]
    return "\n".join(lines)


def written(text: str) -> str:
    """A document with the table between its marks. Raises `ValueError` if it has no marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main(arguments: list[str]) -> None:
    if not arguments:
        print(table())
        return
    path = Path(arguments[0])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
