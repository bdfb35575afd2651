"""Output shared by the commands: tables and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_PLAIN_WIDTH = 120


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
