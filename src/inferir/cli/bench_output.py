"""Tables and plots of `inferir bench`."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from inferir.cli import arguments as a
from inferir.cli.console import print_json, show, table
from inferir.ir.errors import InferirError
from inferir.ir.system import extras
from inferir.ir.system.text_file import write_file

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_COLUMNS = ("mean", "p50", "p90", "p99")


def spread(title: str, rows: Sequence[tuple[str, Mapping[str, float] | None]], unit: str) -> Table:
    """A row per distribution; None is a distribution without values."""
    digits = 3 if unit == "s" else 2
    shown = [(name, *("-" if d is None else f"{d[c]:,.{digits}f}" for c in _COLUMNS)) for name, d in rows]
    heads = [f"median {unit}" if c == "p50" else f"{c} {unit}" for c in _COLUMNS]
    return table(title, ("", *heads), shown, right=heads)


def values(title: str, rows: Sequence[tuple[str, float | int | None]]) -> Table:
    """A row per number; rows with None are left out."""
    shown = [(n, f"{v:,}" if isinstance(v, int) else f"{v:,.2f}") for n, v in rows if v is not None]
    return table(title, ("what", "value"), shown, right=("value",))


@dataclass(frozen=True)
class Output:
    """Whether a measurement is printed as JSON, and where it is drawn.

    Raises `InferirError`, before anything is measured, for a plot that could not be written.
    """

    json: a.Json = False
    file: Annotated[
        Path | None, a.option("FILE", "Draw the distributions into a .png file; needs matplotlib.", "--plot")
    ] = None

    def __post_init__(self) -> None:
        path = self.file
        if path is None:
            return
        if path.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise InferirError(f"--plot: {path} must end in .png, .svg or .pdf")
        if not path.absolute().parent.is_dir():
            raise InferirError(f"--plot: {path.parent} is not a folder")
        extras.require("--plot", "bench")

    def show(self, summary: object, *parts: RenderableType) -> None:
        """Print the measurement: `summary` as JSON, or `parts` for people."""
        if self.json:
            print_json(summary)
        else:
            show(*parts)

    def plot(self, title: str, unit: str, series: Mapping[str, Sequence[float]]) -> None:
        """Draw the share of values at or below each value, a panel per series, if that is wanted."""
        if self.file is None:
            return
        figures: Any = importlib.import_module("matplotlib.figure")
        shown = {name: sorted(v) for name, v in series.items() if v}
        figure = figures.Figure(figsize=(3.6 * len(shown), 3.2), layout="constrained")
        figure.suptitle(title)
        panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for axes, (name, ordered) in zip(panels, shown.items(), strict=True):
            shares = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
            axes.step([ordered[0], *ordered], [0, *shares], where="post")
            axes.set_xlabel(f"{name}, {unit}")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("% at or below")
        drawn = io.BytesIO()
        figure.savefig(drawn, format=self.file.suffix[1:].lower())
        write_file(self.file, drawn.getvalue())
