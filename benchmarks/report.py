"""Records, tables and plots of the comparisons."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Samples = Mapping[str, Mapping[str, Sequence[float]]]
"""Workload -> engine -> one number per round."""


def machine() -> dict[str, Any]:
    """What a record says about where and when it was made."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "machine": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d"),
    }


def write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(machine() | dict(record), indent=1) + "\n", encoding="utf-8")


def medians(samples: Samples) -> dict[str, dict[str, float]]:
    """Workload -> engine -> median; an engine without numbers is left out."""
    return {work: {n: statistics.median(v) for n, v in by_name.items() if v} for work, by_name in samples.items()}


def comparison(title: str, samples: Samples, names: Sequence[str], *, digits: int = 0) -> list[list[str]]:
    """Medians, and of each workload the ratio of the first engine to every other."""
    first, *others = names
    lines = [[title, *names, *(f"{first} / {n}" for n in others)]]
    for work, found in medians(samples).items():
        cells = [f"{found[n]:.{digits}f}" if n in found else "-" for n in names]
        ratios = [f"{found[first] / found[n]:.2f}" if {first, n} <= found.keys() else "-" for n in others]
        lines.append([work, *cells, *ratios])
    return lines


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def bars(panels: Samples, names: Sequence[str], unit: str, title: str, path: Path, *, columns: int = 7) -> None:
    """A panel per workload with a bar per engine, the median, and the range over the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(2.3 * columns, 2.9 * rows), squeeze=False)
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (work, found) in zip(grid.flat, panels.items(), strict=False):
        shown = [n for n in names if found.get(n)]
        middle = [statistics.median(found[n]) for n in shown]
        low = [m - min(found[n]) for m, n in zip(middle, shown, strict=True)]
        high = [max(found[n]) - m for m, n in zip(middle, shown, strict=True)]
        axis.bar(shown, middle, yerr=[low, high], capsize=3, color=[f"C{names.index(n)}" for n in shown])
        axis.set_title(work, fontsize=9)
        axis.tick_params(axis="x", labelrotation=45, labelsize=7)
        axis.tick_params(axis="y", labelsize=8)
    figure.suptitle(title, fontsize=10)
    figure.supylabel(unit, fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
