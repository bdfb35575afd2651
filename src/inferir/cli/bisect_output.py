"""What `inferir verify --layers` and `--bisect` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferir.cli.console import plain, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from inferir.verify.findings import Bisection, Finding, TensorFacts
    from inferir.verify.layers import Distance, Layers

_OPERANDS = ("name", "shape", "type", "min", "max", "mean", "rms", "NaN", "inf")


def parts(bisection: Bisection) -> list[RenderableType]:
    """Tables and texts of a bisection."""
    looked = [[line.stage, line.looked_at, line.result] for line in bisection.looked]
    out: list[RenderableType] = [table("Bisection", ("stage", "looked at", "result"), looked)]
    out += [plain(f"note: {note}") for note in bisection.notes]
    for number, finding in enumerate(bisection.findings, 1):
        out += _finding(number, finding)
    if bisection.passed:
        out.append(plain("Nothing diverges."))
    return out


def layer_parts(layers: Layers) -> list[RenderableType]:
    """A table of modules per step, and one of what kernels return."""
    columns = ("module", "rms", "graph |Δ|", "rel. rms", "kernels |Δ|", "rel. rms", "bound", "")
    out: list[RenderableType] = []
    first = layers.first
    for step in dict.fromkeys(row.step for row in layers.rows):
        rows = []
        for row in layers.rows:
            if row.step != step:
                continue
            mark = "◄ FIRST" if row is first else "◄" if not row.passed else ""
            numbers = [*_distance(row.captured), *_distance(row.artifact)]
            rows.append([row.module, f"{row.rms:.3g}", *numbers, f"{row.bound:.1e}", mark])
        bucket = next(row.bucket for row in layers.rows if row.step == step)
        out.append(
            table(f"Modules in a {step} step, bucket {bucket}, against eager", columns, rows, right=columns[1:7])
        )
    ops = [[o.step, o.op, o.kernel, *_distance(o.distance)] for o in layers.ops]
    titles = ("step", "op", "kernel", "max |Δ|", "rel. rms")
    out.append(table("Results of kernels against the captured graph", titles, ops, right=titles[3:]))
    return out


def _distance(distance: Distance | None) -> list[str]:
    return ["", ""] if distance is None else [f"{distance.largest:.2e}", f"{distance.share:.2e}"]


def _finding(number: int, finding: Finding) -> list[RenderableType]:
    lines = [f"{number}. {finding.title}", f"   {finding.where}", f"   {finding.measured}"]
    worst = finding.worst
    if worst is not None:
        at = ", ".join(map(str, worst.index))
        lines.append(f"   worst {worst.name}[{at}]: expected {worst.expected:.9g}, found {worst.found:.9g}")
    lines += [f"   {note}" for note in finding.notes]
    if finding.reproducer is not None:
        lines.append(f"   reproducer: python {finding.reproducer}/reproduce.py")
    out: list[RenderableType] = [plain("\n".join(lines))]
    if finding.inputs:
        out.append(table("", _OPERANDS, [_facts(f) for f in finding.inputs], right=_OPERANDS[3:]))
    for title, text in (("before" if finding.after else "IR", finding.before), ("after", finding.after)):
        if text:
            out.append(_code(f"{title}:\n{text}"))
    return out


def _code(text: str) -> RenderableType:
    """Lines that are not broken, however long they are."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


def _facts(facts: TensorFacts) -> list[str]:
    shape = "×".join(map(str, facts.shape)) or "scalar"
    numbers = ["" if v is None else f"{v:.3g}" for v in (facts.low, facts.high, facts.mean, facts.rms)]
    return [facts.name, shape, facts.dtype, *numbers, str(facts.nan), str(facts.inf)]
