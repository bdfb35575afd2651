"""What a command's exceptions look like to its user: one line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

import typer

from inferir.cli import streams
from inferir.ir.errors import InferirError
from inferir.ir.system import env
from inferir.ir.system.error_report import INTERNAL, describe, one_line

INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for a program that Ctrl-C ended
BROKEN_PIPE = 141  # 128 + SIGPIPE


def run(program: Callable[[], object]) -> int:
    """Run a whole program, the parts before and after its command included, and return its exit status."""
    try:
        try:
            program()
        except SystemExit as ended:
            if ended.code not in (None, 0):
                code = ended.code if isinstance(ended.code, int) else 1
                if code == 1 and streams.reader_left():
                    return BROKEN_PIPE
                sys.stdout.flush()  # a command that fails may have printed its report
                return code
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return status_of(error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left to do is the interpreter's own
        streams.silence_stdout()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an exception of the block into the line `inferir: error: …` and a `typer.Exit` with its status.

    An exception that nobody foresaw is called a bug; INFERIR_DEBUG=1 adds the traceback to every error.
    """
    try:
        env.debug()
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if _is_usage_error(error):
            raise
        raise typer.Exit(status_of(error)) from error


def status_of(error: Exception) -> int:
    """Report an exception and return the exit status. A reader of standard output that left needs no report."""
    if isinstance(error, streams.OutputError) and error.closed:
        streams.silence_stdout()
        return BROKEN_PIPE
    if wants_debug():
        traceback.print_exception(error)
    message, status = describe(error)
    if status == INTERNAL and not wants_debug():
        message += " (INFERIR_DEBUG=1 shows where)"
    _line("error", message)
    with contextlib.suppress(OSError):
        for line in error.details if isinstance(error, InferirError) else ():
            print(f"  {one_line(line)}", file=sys.stderr, flush=True)
    return status


def wants_debug() -> bool:
    """INFERIR_DEBUG; a bad value is reported by the command."""
    try:
        return env.debug()
    except InferirError:
        return False


def warn(message: str) -> None:
    """Print a warning as one line on stderr."""
    _line("warning", message)


def _line(kind: str, message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"inferir: {kind}: {one_line(message)}", file=sys.stderr, flush=True)


def _is_usage_error(error: Exception) -> bool:
    """Whether it is the command line library's own error, which that library reports itself."""
    return callable(getattr(error, "show", None)) and hasattr(error, "exit_code")
