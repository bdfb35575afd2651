"""The standard streams of a command, whatever it was started with: closed, full, not blocking, in any encoding.

`prepare` replaces the interpreter's objects. Afterwards the three file numbers are taken, so that no socket or file
gets one of them; reading a closed standard input finds its end; writing to standard error never fails; writing to
standard output fails once, with an `OutputError`, and later writes go nowhere.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from inferir.ir.errors import InferirError
from inferir.ir.system.error_report import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ESCAPE = "inferir.escape"
_UNSAFE = ("strict", "surrogateescape")
"""Error handlers with which a character that the encoding lacks, or a lone surrogate, would raise."""


def prepare() -> None:
    """Make the standard streams usable. Call it before anything is opened."""
    _reserve()
    codecs.register_error(_ESCAPE, _escape)
    global _stdout
    _stdout = _Output(1)
    sys.stdout = _writer(sys.stdout, _stdout)
    sys.stderr = _writer(sys.stderr, _Messages(2), line_buffering=True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")


def read_text(name: str, *, line: bool = False) -> str:
    """All of standard input, or its next line, empty at its end; see `text_of`."""
    source = getattr(sys.stdin, "buffer", None)
    if source is None:
        return sys.stdin.readline() if line else sys.stdin.read()
    return text_of(source.readline() if line else source.read(), sys.stdin.encoding, name)


def text_of(data: bytes, encoding: str, name: str) -> str:
    """Decode input, any line end as a line feed. ASCII, the encoding of a locale that names none, is taken as UTF-8.

    Raises `InferirError` that says what `name` is not.
    """
    codec = codecs.lookup(encoding).name
    codec = "utf-8" if codec == "ascii" else codec
    try:
        return io.TextIOWrapper(io.BytesIO(data), codec, "strict").read()
    except UnicodeError:
        raise InferirError(f"{name} is not {codec.upper()}") from None


def silence_stdout() -> None:
    """Drop what is still to be written to standard output."""
    if _stdout is not None:
        _stdout.failed = True


def reader_left() -> bool:
    """Whether writing to standard output failed because nobody reads it."""
    return _stdout is not None and _stdout.problem is not None and _stdout.problem.closed


def _reserve() -> None:
    """Open the null device for each standard stream that is closed. Standard output is then one that cannot be
    written, since what is printed there would be lost.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


class OutputError(OSError):
    """Standard output cannot be written. `closed`: because nobody reads it, its reader left or it never was open."""

    @property
    def closed(self) -> bool:
        return self.errno in (errno.EPIPE, errno.EBADF)


class _Output(io.FileIO):
    """A stream that waits where the descriptor does not block, and fails only once."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.failed = False
        self.problem: OutputError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self.failed:
            return size
        try:
            while (written := super().write(data)) is None:
                select.select([], [self], [])
        except OSError as error:
            self.failed = True
            self.problem = OutputError(error.errno, error.strerror, "standard output")
            raise self.problem from None
        return written


class _Messages(_Output):
    """A stream that may be closed, full or left by its reader: what is for people must not stop the work."""

    def write(self, data: ReadableBuffer, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def _writer(before: TextIO | None, raw: _Output, line_buffering: bool = False) -> TextIO:
    """A text stream like `before`, but one that writes out what its encoding lacks."""
    if before is not None:
        with contextlib.suppress(OSError, ValueError):
            before.flush()
    encoding = getattr(before, "encoding", None) or "utf-8"
    errors = getattr(before, "errors", None) or "strict"
    if errors in _UNSAFE:
        errors = _ESCAPE
    lines = line_buffering or bool(getattr(before, "line_buffering", False))
    through = bool(getattr(before, "write_through", False))
    out = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=lines, write_through=through)
    out.mode = "w"  # type: ignore[misc]
    return out


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = printable(error.object[error.start : error.end])
    return text.encode("ascii", "backslashreplace").decode(), error.end


_stdout: _Output | None = None
"""What `prepare` made of standard output."""
