"""The command as such: fast to start, quiet where it should be, every exception one line and a status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from inferir import __version__
from inferir.cli import command_failures as failures
from inferir.cli.main import app
from inferir.cli.streams import OutputError
from inferir.ir.errors import InferirError

INFERIR = [sys.executable, "-c", "from inferir.cli.main import main; main()"]
BUG = "inferir: error: this is a bug in Inferir"
HEAVY = ("torch", "tvm", "transformers", "numpy", "rich", "sympy", "tokenizers", "msgspec")


def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*INFERIR, *args], capture_output=True, text=True, timeout=60, check=False, **options)


def test_importing_it_loads_nothing_heavy() -> None:
    program = f"import inferir.cli.main, sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_help_loads_only_what_writes_it() -> None:
    program = f"""
import sys
sys.argv = ["inferir", "--help"]
from inferir.cli.main import main
try:
    main()
finally:
    print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "serve" in done.stdout
    assert set(done.stderr.split()) <= {"rich"}


def test_version(cli: Callable[..., Any]) -> None:
    assert cli("--version").out == f"inferir {__version__}\n"


@pytest.mark.parametrize("command", ["compile", "run", "chat", "verify", "inspect", "plan", "cache"])
def test_every_command_has_help(cli: Callable[..., Any], command: str) -> None:
    result = cli(command, "--help")
    assert (result.status, result.err) == (0, "")
    assert f"inferir {command}" in " ".join(result.out.split()) or f"root {command}" in " ".join(result.out.split())


def test_an_unknown_option_is_a_usage_error(cli: Callable[..., Any]) -> None:
    result = cli("compile", "--no-such-option")
    assert result.status == 2
    assert "--no-such-option" in result.err


def raising(error: BaseException) -> int:
    """Exit status of a command that raises `error`."""
    with pytest.raises(typer.Exit) as exit_, failures.one_line_errors():
        raise error
    return exit_.value.exit_code


class StatusThreeError(InferirError):
    exit_code = 3


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InferirError("first\n  second"), 1, "inferir: error: first second"),
        (StatusThreeError("no"), 3, "inferir: error: no"),
        (OSError(28, "No space left on device", "/art/x"), 1, "inferir: error: /art/x: No space left on device"),
        (MemoryError(), 1, "inferir: error: out of memory"),
        (
            ZeroDivisionError("division by zero"),
            70,
            f"{BUG}: ZeroDivisionError: division by zero (INFERIR_DEBUG=1 shows where)",
        ),
        (KeyboardInterrupt(), 130, ""),
        (OutputError(32, "Broken pipe", "standard output"), 141, ""),
    ],
)
def test_errors(error: BaseException, status: int, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert raising(error) == status
    assert capfd.readouterr().err == (f"{line}\n" if line else "")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("INFERIR_DEBUG", "1")
    assert raising(ZeroDivisionError("division by zero")) == failures.INTERNAL
    text = capfd.readouterr().err
    assert "Traceback (most recent call last):" in text
    assert text.endswith("inferir: error: this is a bug in Inferir: ZeroDivisionError: division by zero\n")


def test_a_usage_error_is_left_to_the_library() -> None:
    with pytest.raises(typer.BadParameter), failures.one_line_errors():
        raise typer.BadParameter("no")


def test_the_app_reports_errors_of_commands(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["inspect", str(tmp_path / "nothing")])
    assert done.exit_code == 1
    assert "not found" in done.stderr


def test_a_broken_pipe_is_quiet(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "INFERIR_CACHE": str(tmp_path)}
    done = subprocess.run(
        [*INFERIR, "cache", "ls"], stdout=writer, stderr=subprocess.PIPE, env=env, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (failures.BROKEN_PIPE, b"")


def interruptible() -> None:
    """Undo an ignored Ctrl-C that a test run in the background hands down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(program: str, ready: str) -> tuple[int, str]:
    """Start a Python program, send it SIGINT when it has printed `ready`, and return its status and errors."""
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == ready
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    return child.returncode, errors


def test_ctrl_c_ends_a_command_quietly() -> None:
    program = """
import sys, time
from inferir.cli import main as cli
def slow():
    print("ready", flush=True)
    time.sleep(50)
cli.app.command("slow")(slow)
sys.argv = ["inferir", "slow"]
cli.main()
"""
    assert interrupt(program, "ready") == (130, "")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["import warnings", "warnings.warn('a library speaks')"], ""),
        (
            [
                "import warnings",
                "from inferir.frontend.checkpoint.checkpoint_files import WeightWarning",
                "warnings.warn('odd', WeightWarning)",
            ],
            "inferir: warning: odd\n",
        ),
        (["import logging", "logging.getLogger('inferir.x').warning('a\\nb')"], "inferir: warning: x: a b\n"),
    ],
)
def test_warnings(lines: Sequence[str], shown: str) -> None:
    program = "\n".join(["from inferir.cli import main", "main._quieten_libraries()", *lines])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == shown
