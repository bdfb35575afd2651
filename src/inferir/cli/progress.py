"""Progress bars on stderr, one per phase of a compile; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferir.compile.compile_types import Progress


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Gives a function (phase, done, total) that draws, or None if there is nowhere to draw."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from inferir.cli.console import stderr

    columns: tuple[Any, ...] = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr()) as bars:
        tasks: dict[str, Any] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield report
