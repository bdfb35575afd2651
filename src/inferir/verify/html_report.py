"""`inferir verify --html`: one page that shows a verification and needs nothing else, neither files nor network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from inferir.ir.system.quantities import seconds
from inferir.ir.system.text_file import write_file
from inferir.verify.divergence_plot import Line, plot
from inferir.verify.report_section import Section
from inferir.verify.thresholds import BOUNDS

if TYPE_CHECKING:
    from inferir.verify.checks import Greedy
    from inferir.verify.verify_artifact import VerifyReport

_TEMPLATE = Path(__file__).with_name("html_report.html")
_BEFORE = 6  # tokens that are shown before the first that differs


def report_page(report: VerifyReport, more: Sequence[Section] = ()) -> str:
    """The page, as well-formed HTML. more: sections below those that every report has."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    faulty = {bucket for check in report.checks if not check.passed for bucket in check.buckets}
    return template.render(
        report=report,
        name=report.figures.model if report.figures else report.artifact.name,
        faulty=faulty,
        number=_number,
        plots=[(title, Markup(drawing)) for title, drawing in _plots(report)],
        generations=[_generation(g, report.texts) for g in report.greedy],
        sections=[*own_sections(report), *more],
        failed=[c.name for c in report.checks if not c.passed],
        bf16=any(r.eager_kl is not None for r in report.rows),
        times=", ".join(f"{name} {seconds(spent)}" for name, spent in report.seconds.items()),
    )


def write_report(report: VerifyReport, file: Path, more: Sequence[Section] = ()) -> None:
    """Write the page to `file` as a whole. Raises `InferirError` naming the file if that fails."""
    write_file(file, report_page(report, more).encode("utf-8", "backslashreplace"))


def own_sections(report: VerifyReport) -> list[Section]:
    """Sections of what this verification was asked for."""
    return [*_speed(report), *_baseline(report), *_thresholds(report)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _speed(report: VerifyReport) -> list[Section]:
    if report.speed is None:
        return []
    rows = []
    for name, rate in (("decode", report.speed.decode), ("prefill", report.speed.prefill)):
        ours, theirs = rate.medians
        single = ", ".join(f"{r:.2f}" for r in rate.ratios)
        rows.append([name, str(rate.tokens), f"{ours:,.1f}", f"{theirs:,.1f}", f"{rate.ratio:.2f}", single])
    text = (
        "Medians over rounds in which the artifact and eager took turns. Ratios can be compared between machines and "
    )
    text += "days; tokens per second cannot."
    columns = ("", "tokens", "tokens/s", "eager's tokens/s", "ratio", "ratio in each round")
    return [Section("Speed", text, columns, rows, columns[1:5])]


def _baseline(report: VerifyReport) -> list[Section]:
    if report.baseline is None or report.figures is None:
        return []
    here, there = dataclasses.asdict(report.figures), dataclasses.asdict(report.baseline.figures)
    names = ("kl", "eager_kl", "top1", "max_abs", "decode_speed", "prefill_speed", "positions")
    rows = [
        [name, _number(there[name]), _number(here[name]), _change(here[name], there[name])]
        for name in names
        if here[name] is not None or there[name] is not None
    ]
    columns = ("figure", "baseline", "this run", "change")
    return [Section("Baseline", f"From {report.baseline.source}.", columns, rows, columns[1:])]


def _change(now: float | None, then: float | None) -> str:
    return f"{now / then - 1:+.1%}" if now is not None and then else ""


def _thresholds(report: VerifyReport) -> list[Section]:
    thresholds = report.thresholds
    if not thresholds.source:
        return []
    rows = [[key, f"{getattr(thresholds, key):g}"] for key in BOUNDS if getattr(thresholds, key) is not None]
    rows += [[f"tolerance.{key}", f"{value:g}"] for key, value in dataclasses.asdict(thresholds.tolerance).items()]
    return [Section("Thresholds", f"From {thresholds.source}.", ("key", "value"), rows, ("value",))]


def _plots(report: VerifyReport) -> list[tuple[str, str]]:
    """Titles and drawings: mean KL divergence and largest difference by position, over all sequences."""
    measured = report.measured
    if measured is None or not measured.sequences:
        return []
    lengths = [len(s.kl) for s in measured.sequences]
    ends = np.cumsum(lengths)[:-1]
    lines = [Line("artifact", "ours", _by_position(np.split(measured.kl, ends), np.mean))]
    if measured.eager_kl is not None:
        own = _by_position(np.split(measured.eager_kl, ends), np.mean)
        lines.append(Line(f"eager in {report.dtype.value}", "eager", own))
    farthest = _by_position([s.max_abs for s in measured.sequences], np.max)
    bound = next((("bound", c.bound) for c in report.checks if c.name == "logits" and c.bound is not None), None)
    drawn = {
        "Mean KL divergence from eager in float32, in nats": (lines, None),
        "Largest difference of a logit": ([Line("artifact", "ours", farthest)], bound),
    }
    return [(title, plot(title, lines, level)) for title, (lines, level) in drawn.items()]


def _by_position(
    sequences: Sequence[npt.NDArray[np.float64]], join: Callable[[npt.NDArray[np.float64]], Any]
) -> list[float]:
    """One value for each position, of all sequences that reach it."""
    longest = max(map(len, sequences))
    return [float(join(np.array([s[i] for s in sequences if i < len(s)]))) for i in range(longest)]


def _generation(greedy: Greedy, texts: dict[int, str]) -> dict[str, Any]:
    """What the template shows of one generation: where it leaves eager's, the tokens of both around that place."""
    start = max(0, greedy.matched - _BEFORE)

    def tokens(ids: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"id": i, "text": _visible(texts.get(i, str(i))), "same": start + n < greedy.matched}
            for n, i in enumerate(ids[start:])
        ]

    return {
        "greedy": greedy,
        "start": start,
        "prompt": "".join(_visible(texts.get(i, f"{i} ")) for i in greedy.prompt),
        "ours": tokens(greedy.ours),
        "theirs": tokens(greedy.theirs),
    }


def _visible(text: str) -> str:
    """A token's text with its line ends and control characters written out."""
    return "".join(c if c.isprintable() else {"\n": "⏎", "\t": "⇥"}.get(c, "·") for c in text)
