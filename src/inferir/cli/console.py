"""Output shared by the commands: tables, sizes, durations and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_PLAIN_WIDTH = 120
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def stdout() -> Console:
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(file: Any) -> Console:
    """A console that fits the terminal, or has a fixed width where there is none."""
    from rich.console import Console

    return Console(file=file, width=None if file.isatty() else _PLAIN_WIDTH, highlight=False, emoji=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A plain table; columns named in `right` are right-aligned."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    out = Table(
        show_header=any(columns),
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for name in columns:
        out.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        out.add_row(*map(escape, row))
    return out


def show(*parts: RenderableType) -> None:
    """Print tables and lines on stdout, with an empty line between two parts."""
    console = stdout()
    with console.capture() as captured:
        for number, part in enumerate(parts):
            if number:
                console.print()
            console.print(part)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    sys.stdout.write(text)


def plain(text: str) -> RenderableType:
    """`text` as it is: brackets in it are no markup."""
    from rich.text import Text

    return Text(text)


def print_json(value: object) -> None:
    """One JSON document on stdout; what its encoding lacks is escaped as JSON does."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    print(text)


def shortened(text: str, most: int = 100) -> str:
    """`text`, its end replaced by its length if it is longer than `most`."""
    return text if len(text) <= most else f"{text[: most - 30]}… ({len(text):,} characters)"


def size(nbytes: float) -> str:
    """`nbytes` for people, such as 12.3 MiB."""
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in _UNITS:
        nbytes /= 1024
        if nbytes < 1024 or unit == _UNITS[-1]:
            break
    return f"{nbytes:.1f} {unit}"


def seconds(value: float) -> str:
    """A duration for people: 31 ms, 2.41 s, 3 min 20 s."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


def age(value: float) -> str:
    """How long ago, in the largest fitting unit."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= length:
            return f"{value / length:.0f} {unit}"
    return f"{max(value, 0):.0f} s"


def count(number: int, noun: str) -> str:
    """`1 entry`, `2 entries`, `3 buckets`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"
