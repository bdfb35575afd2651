"""Output shared by the commands: tables, JSON and progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from inferir.compile.compile_types import Progress as Report

_PLAIN_WIDTH = 120


def console(file: Any) -> Console:
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
    out = console(sys.stdout)
    with out.capture() as captured:
        for number, part in enumerate(parts):
            if number:
                out.print()
            out.print(part)
    text = captured.get()
    if not out.is_terminal:
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


@contextmanager
def progress_bars() -> Iterator[Report | None]:
    """Gives a function (phase, done, total) that draws bars on stderr, or None if there is nowhere to draw."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(sys.stderr)) as bars:
        tasks: dict[str, Any] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield report
