"""The sections of the HTML report that layers and a bisection add."""

from __future__ import annotations

from inferir.verify.findings import Bisection, Finding
from inferir.verify.layers import Layers
from inferir.verify.report_section import Section


def layer_sections(layers: Layers | None) -> list[Section]:
    """Modules against eager, a row for each and step."""
    if layers is None:
        return []
    first = layers.first
    text = (
        "Every module's output is within its bound." if first is None else f"The first out of bound is {first.module}."
    )
    rows = []
    for row in layers.rows:
        shares = ["" if d is None else f"{d.share:.2e}" for d in (row.captured, row.artifact)]
        mark = "" if row.passed else "out of bound"
        rows.append((row.step, row.bucket, row.module, row.kernel, f"{row.rms:.3g}", *shares, f"{row.bound:.1e}", mark))
    columns = ("step", "bucket", "module", "kernel", "rms", "captured graph", "artifact", "bound", "")
    return [Section("Layers", text, columns, rows, columns[4:8])]


def bisect_sections(bisection: Bisection | None) -> list[Section]:
    """What was looked at, and a section for every finding."""
    if bisection is None:
        return []
    text = "Nothing diverges." if bisection.passed else f"Findings: {', '.join(f.title for f in bisection.findings)}."
    looked = [(line.stage, line.looked_at, line.result) for line in bisection.looked]
    head = Section("Bisection", " ".join([text, *bisection.notes]), ("stage", "looked at", "result"), looked)
    return [head, *map(_finding, bisection.findings)]


def _finding(finding: Finding) -> Section:
    lines = [finding.where, finding.measured, *finding.notes]
    if finding.reproducer is not None:
        lines.append(f"Reproducer: {finding.reproducer}")
    rows = [
        (
            f.name,
            "×".join(map(str, f.shape)),
            f.dtype,
            *map(_text, (f.low, f.high, f.mean, f.rms)),
            str(f.nan),
            str(f.inf),
        )
        for f in finding.inputs
    ]
    columns = ("name", "shape", "type", "min", "max", "mean", "rms", "NaN", "inf")
    code = "\n\n".join(
        f"{title}:\n{ir}"
        for title, ir in (("before" if finding.after else "IR", finding.before), ("after", finding.after))
        if ir
    )
    return Section(finding.title, "; ".join(lines), columns if rows else (), rows, columns[3:], code)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
