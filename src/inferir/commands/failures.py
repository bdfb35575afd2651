"""What a command's exceptions look like to its user: one line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterator

import typer

from inferir import env
from inferir.ir.errors import InferirError

INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for a program that Ctrl-C ended
BROKEN_PIPE = 141  # 128 + SIGPIPE
INTERNAL = 70  # EX_SOFTWARE


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an exception of the block into the line `inferir: error: …` and a `typer.Exit` with its status.

    An exception that nobody foresaw is called a bug; INFERIR_DEBUG=1 adds the traceback to every error.
    """
    traces = False
    try:
        traces = env.debug()
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(BROKEN_PIPE) from None
    except Exception as error:
        if _is_usage_error(error):
            raise
        if traces:
            traceback.print_exc()
        raise typer.Exit(_report(error, traces)) from error


def fail(message: str, status: int = 1) -> int:
    """Print an error as one line on stderr and return `status`."""
    _line("error", message)
    return status


def warn(message: str) -> None:
    """Print a warning as one line on stderr."""
    _line("warning", message)


def _line(kind: str, message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"inferir: {kind}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def _report(error: Exception, traces: bool) -> int:
    if isinstance(error, InferirError):
        return fail(str(error), error.exit_code)
    if isinstance(error, OSError):
        what = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
        return fail(f"{what}{error.strerror or error}")
    if isinstance(error, MemoryError):
        return fail("out of memory")
    hint = "" if traces else " (INFERIR_DEBUG=1 shows where)"
    return fail(f"this is a bug in Inferir: {type(error).__name__}: {error}{hint}", INTERNAL)


def _is_usage_error(error: Exception) -> bool:
    """Whether it is the command line library's own error, which that library reports itself."""
    return callable(getattr(error, "show", None)) and hasattr(error, "exit_code")


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere: the reader of stdout has left."""
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
