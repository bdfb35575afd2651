"""A verification as tables, as JSON and as JUnit XML."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferir.cli.console import plain, show, table
from inferir.ir.errors import InferirError
from inferir.ir.system.atomic_file import replace_file
from inferir.ir.system.error_report import one_line
from inferir.ir.system.quantities import seconds

if TYPE_CHECKING:
    from inferir.verify.verify_artifact import VerifyReport


def print_report(report: VerifyReport) -> None:
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
        table("Checks", ("", "check", "measured"), checks),
        plain(f"{'PASSED' if report.passed else 'FAILED'} ({times})"),
    )


def as_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "artifact": str(report.artifact),
        "model": report.model,
        "dtype": report.dtype.value,
        "passed": report.passed,
        "checks": [dataclasses.asdict(c) for c in report.checks],
        "rows": [dataclasses.asdict(r) for r in report.rows],
        "greedy": [{**dataclasses.asdict(g), "same": g.same, "excused": g.excused} for g in report.greedy],
        "seconds": report.seconds,
    }


def write_junit(report: VerifyReport, file: Path) -> None:
    """One test case per check, and one per bucket and kind of step with its numbers. Raises `InferirError`."""
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
    try:
        replace_file(file, ET.tostring(suite, encoding="utf-8", xml_declaration=True))
    except (OSError, ValueError) as error:
        raise InferirError(f"{file}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
