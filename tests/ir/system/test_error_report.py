"""What is printed of an exception: one line that can be encoded, and a status."""

from __future__ import annotations

import errno
import os

import pytest

from inferir.ir.errors import ArtifactError
from inferir.ir.system.error_report import INTERNAL, describe, one_line, printable

BUG = "this is a bug in Inferir: "
THREADS = "cannot start a thread: the limit of processes and threads is reached (ulimit -u)"


class ForeignError(Exception):
    """An error with a number that is no OSError, as ZeroMQ's are."""

    errno = errno.EMFILE
    strerror = "Too many open files"


class ExitThreeError(ArtifactError):
    exit_code = 3


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (ExitThreeError("a\n  b"), "a b", 3),
        (ArtifactError(os.fsdecode(b"art\xff: not found")), "art\\xff: not found", 1),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device", 1),
        (OSError(28, "No space left on device", b"/x\xff"), "/x\\xff: No space left on device", 1),
        (OSError("odd"), "odd", 1),
        (BrokenPipeError(), "BrokenPipeError", 1),
        (ForeignError(), "Too many open files", 1),
        (MemoryError("17 GiB"), "out of memory", 1),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), "out of memory", 1),
        (RuntimeError("can't start new thread"), THREADS, 1),
        (RecursionError("maximum"), "what was given is nested too deeply", 1),
        (ImportError("libx.so: cannot open"), "a library cannot be loaded: libx.so: cannot open", 1),
        (ImportError("no x", name="torch"), "a library cannot be loaded: no x", 1),
        (ImportError("no x", name="inferir.ir"), BUG + "ImportError: no x", INTERNAL),
        (KeyError("not enough memory"), BUG + "KeyError: 'not enough memory'", INTERNAL),
        (RuntimeError("why can't start new thread?"), BUG + "RuntimeError: why can't start new thread?", INTERNAL),
        (ZeroDivisionError("by zero"), BUG + "ZeroDivisionError: by zero", INTERNAL),
        (ValueError("by \x1b[31mred"), BUG + "ValueError: by \\x1b[31mred", INTERNAL),
    ],
)  # fmt: skip
def test_describe(error: Exception, line: str, status: int) -> None:
    assert describe(error) == (line, status)


def test_text_in_a_wrong_encoding_is_no_bug() -> None:
    for make in (lambda: b"\xff".decode(), lambda: "\udcff".encode()):
        with pytest.raises(UnicodeError) as raised:
            make()
        assert describe(raised.value)[1] == 1


def test_every_text_becomes_printable() -> None:
    for text in ("plain", "é 😀", "\udcff\ud800", os.fsdecode(bytes(range(1, 256)))):
        printable(text).encode()
        line = one_line(text)
        line.encode()
        assert line.isprintable()
    assert printable("é\udcfe") == "é\\xfe"
    assert printable("\ud800") == "\\ud800"
