"""A page that is a session at a shell: its files, its commands, and what they print.

A fenced block of python, toml or yaml whose first line is `# PATH` is the content of that file. A block of `console`
holds commands after `$ ` and what they print; there a line `…` stands for any lines, or none, and `…` within a line for
any text. Numbers and their units are compared as such and not by value: times differ from machine to machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?(?:ns|µs|us|ms|s|B|KiB|MiB|GiB|%)\b|%)?")
_LINES = re.compile(r"[─━═┄]+")
ANY = "…"


@dataclass(frozen=True)
class File:
    """What stands at `path`, relative to the folder in which the session takes place."""

    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line for the shell, and the lines that it prints."""

    line: str
    output: tuple[str, ...]


def steps(page: Path) -> Iterator[File | Command]:
    """Files and commands of a page in their order."""
    for language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            yield from _commands(text)
        elif language in ("python", "toml", "yaml") and text.startswith("# "):
            yield File(text.partition("\n")[0].removeprefix("# ").strip(), text)


def _commands(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        command = lines.pop(0)
        while command.endswith("\\"):
            command = f"{command[:-1].rstrip()} {lines.pop(0).strip()}"
        yield Command(command, tuple(lines))


def normal(line: str) -> str:
    """A line without what may differ between two runs: values of numbers, widths of columns."""
    return re.sub(r"\s+", " ", _NUMBER.sub("#", _LINES.sub("─", line))).strip()


def difference(wanted: tuple[str, ...], printed: str) -> str | None:
    """Why `printed` is not what the page shows, or None."""
    have = [n for n in map(normal, printed.splitlines()) if n]
    at, skip = 0, False
    for line in wanted:
        want = normal(line)
        if want == ANY:
            skip = True
        elif want:
            pattern = re.compile(".*".join(map(re.escape, want.split(ANY))))
            places = range(at, len(have) if skip else min(at + 1, len(have)))
            found = next((i for i in places if pattern.fullmatch(have[i])), None)
            if found is None:
                return f"the page shows\n    {line}\nwhere this is printed:\n" + "\n".join(
                    f"    {n}" for n in have[at:]
                )
            at, skip = found + 1, False
    if at < len(have) and not skip:
        return "the page does not show\n" + "\n".join(f"    {n}" for n in have[at:])
    return None
