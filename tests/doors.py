"""A command as a real process under an odd condition, and what must hold whatever the condition is."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 120.0
INFERIR = [sys.executable, "-P", "-m", "inferir"]


@dataclass(frozen=True)
class Cell:
    """A command line and its condition.

    status: what the exit status may be. close: standard descriptors closed at start. full, left: those that lead to a
    full device, or to a pipe whose reader has left. env: variables set, or removed by None. limits: resource limits,
    soft and hard. ignored, blocked: signals that the parent left so. stop: seconds after which a server gets SIGTERM.
    says: what its error line contains.
    """

    args: Sequence[str | os.PathLike[str]]
    status: tuple[int, ...] = (0,)
    close: tuple[int, ...] = ()
    full: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    stdin: bytes | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)
    ignored: tuple[int, ...] = ()
    blocked: tuple[int, ...] = ()
    cwd: Path | None = None
    without_cwd: bool = False
    says: str = ""


def run(cell: Cell, until_ready: float | None = None) -> tuple[str, str]:
    """Run a cell, check what must hold always, and return what it printed.

    Never status 70, never a traceback, at most one line of error, and nothing else on standard error of a failure.
    until_ready: for a server; a file of its errors is not watched, so it is ended by SIGTERM after so many seconds.
    """
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        streams: dict[int, Any] = {1: out, 2: err}
        for number in cell.full:
            streams[number] = stack.enter_context(open("/dev/full", "wb"))
        for number in cell.left:
            reading, writing = os.pipe()
            os.close(reading)
            streams[number] = stack.enter_context(os.fdopen(writing, "wb"))
        source = subprocess.DEVNULL
        if cell.stdin is not None:
            given = stack.enter_context(tempfile.TemporaryFile())
            given.write(cell.stdin)
            given.seek(0)
            source = given  # type: ignore[assignment]
        environment = {k: v for k, v in {**os.environ, **cell.env}.items() if v is not None}
        child = subprocess.Popen(
            [*INFERIR, *cell.args],
            stdin=source,
            stdout=streams[1],
            stderr=streams[2],
            env=environment,
            cwd=cell.cwd,
            preexec_fn=lambda: _condition(cell),
        )
        try:
            if until_ready is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(until_ready)
                child.terminate()
            status = child.wait(SECONDS)
        finally:
            child.kill()
            child.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))
    check(cell, status, texts[0], texts[1])
    return texts[0], texts[1]


def check(cell: Cell, status: int, out: str, err: str) -> None:
    where = f"{cell}\nstatus {status}\n{err}"
    assert status != 70, where
    assert "Traceback" not in out + err, where
    errors = [line for line in err.splitlines() if line.startswith("inferir: error: ")]
    assert len(errors) <= 1, where
    if status == 1 and 2 not in (*cell.close, *cell.full, *cell.left):
        others = [line for line in err.splitlines() if not line.startswith("inferir: ")]
        assert (len(errors), others) == (1, []), where
        assert cell.says in errors[0], where
    assert status in cell.status, where


def _condition(cell: Cell) -> None:
    for limit, most in cell.limits.items():
        resource.setrlimit(limit, (most, most))
    for number in cell.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, cell.blocked)
    if cell.without_cwd:
        gone = tempfile.mkdtemp()
        os.chdir(gone)
        os.rmdir(gone)
    for number in cell.close:
        os.close(number)
