"""What a check found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from inferir.ir.system.error_report import describe

State = Literal["ok", "warning", "failed", "skipped"]
STATES: tuple[State, ...] = ("ok", "warning", "failed", "skipped")


@dataclass(frozen=True)
class Finding:
    """One line of the report. advice: what to do about it; "" where there is nothing to do."""

    layer: str
    name: str
    state: State
    message: str
    advice: str = ""


def failure(layer: str, name: str, error: BaseException, advice: str, state: State = "failed") -> Finding:
    """A finding of an exception. Where its message ends with what to do, as most do, that is the advice."""
    message, remedy = describe(error)[0], advice
    head, separator, tail = message.rpartition("; ")
    return Finding(layer, name, state, head if separator else message, tail if separator else remedy)


def skipped(layer: str, name: str, reason: str, advice: str = "") -> Finding:
    """A check that was not made."""
    return Finding(layer, name, "skipped", f"skipped because {reason}", advice)


def broken(findings: Iterable[Finding], *names: str) -> str | None:
    """Why what depends on these checks cannot be made; None if none of them failed or was skipped."""
    for finding in findings:
        if finding.name in names and finding.state in ("failed", "skipped"):
            verb = "failed" if finding.state == "failed" else "was skipped"
            return f"{finding.layer}: {finding.name} {verb}"
    return None
