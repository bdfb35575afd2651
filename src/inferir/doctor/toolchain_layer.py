"""The toolchain: Python, the libraries that serve, those that compile, LLVM and the linker."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata

from inferir.codegen.linker import LINKERS, find_linker
from inferir.doctor.finding import Finding, skipped
from inferir.doctor.version_ranges import Requirement, in_range, requirements
from inferir.ir.system import extras
from inferir.ir.system.child import before_exec
from inferir.ir.system.error_report import one_line

LAYER = "toolchain"
COMPILER, LINKER, LLVM = "compiler libraries", "linker", "LLVM"
SHOWN = ("torch", "apache-tvm", "triton", "transformers")
"""Libraries whose versions are told even if nothing is wrong with them."""
SECONDS = 60
_ASK_LLVM = """
import sys
sys.modules["torch"] = None
import tvm
print("LLVM", tvm.target.codegen.llvm_version_major())
"""


def check_toolchain() -> Iterator[Finding]:
    """Findings about what is installed. Without the compiler's libraries, what belongs to it is skipped."""
    try:
        needs, python = list(requirements()), metadata("inferir")["Requires-Python"] or ""
    except PackageNotFoundError:
        advice = "install it with pip, so that versions can be compared"
        yield Finding(LAYER, "package", "warning", "inferir is not installed as a distribution", advice)
        needs, python = [], ""
    version = platform.python_version()
    if in_range(version, python):
        yield Finding(LAYER, "Python", "ok", f"{version} ({sys.executable})")
    else:
        advice = f"use Python {python}"
        yield Finding(LAYER, "Python", "failed", f"{version}, and Inferir needs {python}", advice)
    yield from _libraries("serving libraries", [r for r in needs if not r.extra], "inferir")
    absent = extras.lacks("compile")
    if absent is not None:
        reason = f"the compiler is not installed ({absent.partition(',')[0]} is missing): this installation serves only"
        for name in (COMPILER, LINKER, LLVM):
            yield skipped(LAYER, name, reason, "to compile here: pip install 'inferir[compile]'")
        return
    yield from _libraries(COMPILER, [r for r in needs if r.extra == "compile"], "inferir[compile]")
    yield _linker()
    yield _llvm()


def _libraries(name: str, needs: Sequence[Requirement], package: str) -> Iterator[Finding]:
    wrong = [r for r in needs if not r.fits]
    for r in wrong:
        state = "is not installed" if r.installed is None else f"{r.installed} is installed, outside of the range"
        message = f"{r.name} {state}; {package} needs {r.spec}"
        yield Finding(LAYER, name, "failed", message, f"pip install '{r.spec}'")
    if not wrong and needs:
        shown = ", ".join(f"{r.name} {r.installed}" for r in needs if r.name in SHOWN)
        text = f"{len(needs)} within the ranges of {package}" + (f": {shown}" if shown else "")
        yield Finding(LAYER, name, "ok", text)


def _linker() -> Finding:
    path = find_linker()
    if path is None:
        message = f"no linker found ({' or '.join(LINKERS)} on PATH)"
        return Finding(LAYER, LINKER, "failed", message, "install binutils (ld) or LLVM's lld")
    status, text = _output([path, "--version"])
    if status:
        return Finding(LAYER, LINKER, "failed", f"{path} does not run: {text}", "install binutils (ld) again")
    return Finding(LAYER, LINKER, "ok", f"{text} ({path})")


def _llvm() -> Finding:
    """In a process of its own: a library that does not fit may end it."""
    status, text = _output([sys.executable, "-P", "-c", _ASK_LLVM])
    if status or not text.startswith("LLVM "):
        advice = "install TVM again: pip install --force-reinstall apache-tvm"
        return Finding(LAYER, LLVM, "failed", f"TVM cannot be imported: {text or f'status {status}'}", advice)
    return Finding(LAYER, LLVM, "ok", f"{text}, of TVM")


def _output(command: Sequence[str]) -> tuple[int, str]:
    """Exit status, and the first line of what a program printed or the last of its errors."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, preexec_fn=before_exec()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, one_line(str(error))
    said = done.stderr.strip().splitlines()[-1:] if done.returncode else done.stdout.strip().splitlines()[:1]
    return done.returncode, one_line("".join(said))
