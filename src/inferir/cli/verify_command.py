"""`inferir verify ART`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferir.cli import arguments as a
from inferir.cli import bisect_output
from inferir.cli.command_failures import warn
from inferir.cli.console import plain, print_json, show, table
from inferir.ir.errors import InferirError
from inferir.ir.system import extras
from inferir.ir.system.error_report import one_line
from inferir.ir.system.quantities import count, seconds
from inferir.ir.system.text_file import write_file

if TYPE_CHECKING:
    from rich.table import Table

    from inferir.verify.speed import Speed
    from inferir.verify.verify_artifact import VerifyReport


def verify(
    artifact: a.Artifact,
    model: Annotated[
        str | None,
        a.option(
            "MODEL",
            "The model that the artifact was compiled from. Default: a folder or GGUF file of its name, here or "
            "beside the artifact.",
        ),
    ] = None,
    quick: Annotated[bool, a.flag("Short sequences and few of them: a fraction of the time.", "--quick")] = False,
    threads: a.Threads = None,
    revision: a.Revision = None,
    trust_remote_code: a.TrustRemoteCode = False,
    thresholds: Annotated[Path | None, a.option("FILE", "Bounds of your own, in TOML or JSON.")] = None,
    baseline: Annotated[
        Path | None, a.option("FILE", "What an earlier run measured, behind which this one may not fall.")
    ] = None,
    write_baseline: Annotated[
        Path | None, a.option("FILE", "Write what was measured as a baseline, if all bounds are held.")
    ] = None,
    speed: Annotated[
        bool | None,
        a.flag(
            "Also measure speed as a ratio to eager's. Default: if a threshold or the baseline needs it.",
            "--speed/--no-speed",
        ),
    ] = None,
    layers: Annotated[
        bool, a.flag("Also compare every module's output with eager's, in a prompt and a decode step.", "--layers")
    ] = False,
    bisect: Annotated[
        bool, a.flag("Also look for the pass, weight, kernel or step input that is at fault.", "--bisect")
    ] = False,
    bisect_dir: Annotated[
        Path | None,
        a.option("DIR", "With --bisect: the folder for what reproduces a fault alone. Default: a new one, ART.bisect."),
    ] = None,
    html: Annotated[Path | None, a.option("FILE", "Also write a page that shows everything.")] = None,
    junit: Annotated[Path | None, a.option("FILE", "Also write a JUnit XML report.")] = None,
    json: a.Json = False,
) -> None:
    """Compare an artifact with Hugging Face's eager code on the same weights; exit status 1 if it is out of bounds."""
    extras.require("verify", "compile")
    from inferir.cli.console import progress_bars
    from inferir.verify.baseline import load_baseline, write_figures
    from inferir.verify.bisect_artifact import artifact_layers, bisect_artifact
    from inferir.verify.bisect_section import bisect_sections, layer_sections
    from inferir.verify.html_report import write_report
    from inferir.verify.reproducer import check_free
    from inferir.verify.thresholds import load_thresholds
    from inferir.verify.verify_artifact import verify_artifact

    for name, file in (("--html", html), ("--junit", junit), ("--write-baseline", write_baseline)):
        if file is not None and not file.absolute().parent.is_dir():
            raise InferirError(f"{name} {file}: there is no folder {file.parent}")
    if bisect_dir is not None and not bisect:
        raise InferirError("--bisect-dir says where --bisect writes; give both")
    check_free(bisect_dir)
    bounds = None if thresholds is None else load_thresholds(thresholds)
    earlier = None if baseline is None else load_baseline(baseline)
    with progress_bars() as progress:
        report = verify_artifact(
            artifact,
            model,
            quick=quick,
            threads=threads,
            progress=progress,
            revision=revision,
            trust_remote_code=trust_remote_code,
            thresholds=bounds,
            baseline=earlier,
            speed=speed,
        )
        if layers:
            report.layers = artifact_layers(
                artifact,
                model,
                threads=threads,
                progress=progress,
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
        if bisect:
            report.bisection = bisect_artifact(
                artifact,
                model,
                place=bisect_dir,
                threads=threads,
                progress=progress,
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
    if junit is not None:
        _write_junit(report, junit)
    if html is not None:
        write_report(report, html, [*layer_sections(report.layers), *bisect_sections(report.bisection)])
    if write_baseline is not None and report.figures is not None:
        if report.passed:
            write_figures(report.figures, write_baseline)
        else:
            warn(f"{write_baseline} is not written: a run that fails is no baseline")
    if json:
        print_json(_as_json(report))
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _print(report: VerifyReport) -> None:
    bf16 = any(r.eager_kl is not None for r in report.rows)
    columns = [
        "bucket",
        "steps",
        "positions",
        "max |Δ|",
        "mean |Δ|",
        "mean KL",
        *(["eager's KL"] if bf16 else []),
        "same top-1",
    ]
    rows = []
    for r in report.rows:
        own = [] if r.eager_kl is None else [f"{r.eager_kl:.2e}"]
        numbers = [f"{r.max_abs:.2e}", f"{r.mean_abs:.2e}", f"{r.kl:.2e}", *own, f"{r.top1:.1%}"]
        rows.append([r.bucket, r.kind, f"{r.positions:,}", *numbers])
    greedy = [
        [str(g.prompt_tokens), str(g.tokens), str(g.matched), "" if g.gap is None else f"{g.gap:.2e}"]
        for g in report.greedy
    ]
    checks = [["passed" if c.passed else "FAILED", c.name, c.detail] for c in report.checks]
    what = f"{report.artifact} against eager {report.model}, logits compared with eager in float32"
    times = ", ".join(f"{name} {seconds(spent)}" for name, spent in report.seconds.items())
    show(
        plain(what),
        table("", columns, rows, right=columns[2:]),
        table(
            f"Greedy generation against eager {report.dtype.value}",
            ("prompt tokens", "generated", "same ids", "eager's margin at the first other"),
            greedy,
            right=("prompt tokens", "generated", "same ids"),
        ),
        *([] if report.speed is None else [_speed_table(report.speed)]),
        table("Checks", ("", "check", "measured"), checks),
        *([] if report.layers is None else bisect_output.layer_parts(report.layers)),
        *([] if report.bisection is None else bisect_output.parts(report.bisection)),
        plain(f"{'PASSED' if report.passed else 'FAILED'} ({times})"),
    )


def _speed_table(speed: Speed) -> Table:
    rows = []
    for name, rate in (("decode", speed.decode), ("prefill", speed.prefill)):
        ours, theirs = rate.medians
        spread = f"{min(rate.ratios):.2f} … {max(rate.ratios):.2f}"
        rows.append([name, f"{rate.tokens:,}", f"{ours:,.1f}", f"{theirs:,.1f}", f"{rate.ratio:.2f}", spread])
    columns = ("", "tokens", "tokens/s", "eager's", "ratio", "in single rounds")
    rounds = len(speed.decode.eager)
    return table(
        f"Speed, medians of {rounds} rounds, {count(speed.threads, 'thread')} each", columns, rows, right=columns[1:]
    )


def _as_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "artifact": str(report.artifact),
        "model": report.model,
        "dtype": report.dtype.value,
        "passed": report.passed,
        "checks": [dataclasses.asdict(c) for c in report.checks],
        "rows": [dataclasses.asdict(r) for r in report.rows],
        "greedy": [{**dataclasses.asdict(g), "same": g.same, "excused": g.excused} for g in report.greedy],
        "seconds": report.seconds,
        "figures": None if report.figures is None else dataclasses.asdict(report.figures),
        "speed": None if report.speed is None else dataclasses.asdict(report.speed),
        "thresholds": dataclasses.asdict(report.thresholds),
        "baseline": None if report.baseline is None else dataclasses.asdict(report.baseline),
        "environment": report.environment,
        "layers": None if report.layers is None else report.layers.as_json(),
        "bisection": None if report.bisection is None else report.bisection.as_json(),
    }


def _write_junit(report: VerifyReport, file: Path) -> None:
    """One test case per check, and one per bucket and kind of step with its numbers. Raises `InferirError`."""
    from xml.etree import ElementTree as ET

    failed = [c for c in report.checks if not c.passed]
    name = one_line(report.artifact.name)
    suite = ET.Element(
        "testsuite",
        name="inferir verify",
        tests=str(len(report.checks) + len(report.rows)),
        failures=str(len(failed)),
        errors="0",
        time=f"{sum(report.seconds.values()):.3f}",
    )
    for check in report.checks:
        case = ET.SubElement(suite, "testcase", classname=f"verify.{name}", name=check.name)
        if check.passed:
            ET.SubElement(case, "system-out").text = check.detail
        else:
            ET.SubElement(case, "failure", message=check.detail)
    for row in report.rows:
        case = ET.SubElement(suite, "testcase", classname=f"verify.{name}.{row.bucket}", name=row.kind)
        numbers = ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(row).items() if k not in ("bucket", "kind"))
        ET.SubElement(case, "system-out").text = numbers
    write_file(file, ET.tostring(suite, encoding="utf-8", xml_declaration=True))
