"""Any exception as one line for people and an exit status, for every process that can fail."""

from __future__ import annotations

import os
import re

from inferir.ir.errors import InferirError

INTERNAL = 70  # EX_SOFTWARE
_BYTE = re.compile("[\udc80-\udcff]")
_REFUSED = re.compile(r"can't allocate memory|not enough memory|std::bad_alloc|Cannot allocate memory", re.IGNORECASE)
"""What libraries in C++ say where Python has `MemoryError`."""


def printable(text: str) -> str:
    r"""`text` with what cannot be encoded written out: a byte of a path that is no UTF-8 as `\xff`."""
    if text.isascii():
        return text
    shown = _BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return shown.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """`text` on one line, and without characters that cannot be encoded or that steer a terminal."""
    words = " ".join(printable(text).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def describe(error: BaseException) -> tuple[str, int]:
    """What to print of an exception, on one line, and the exit status of the command that it ends.

    What nobody foresaw is called a bug and has the status `INTERNAL`.
    """
    if isinstance(error, InferirError):
        return one_line(str(error)), error.exit_code
    if (text := _cause(error)) is not None:
        return one_line(text), 1
    return one_line(f"this is a bug in Inferir: {type(error).__name__}: {error}"), INTERNAL


def _cause(error: BaseException) -> str | None:
    """What the world around the process did, or what it was given, that made it fail."""
    text = str(error)
    if isinstance(error, OSError):
        what = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
        return f"{what}{error.strerror or text or type(error).__name__}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _REFUSED.search(text)):
        return "out of memory"
    if isinstance(error, RecursionError):
        return "what was given is nested too deeply"
    if isinstance(error, UnicodeError):
        return f"text in another encoding than is expected here: {text}"
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "inferir":
        return f"a library cannot be loaded: {error}"
    if isinstance(error, RuntimeError) and text == "can't start new thread":
        return "cannot start a thread: the limit of processes and threads is reached (ulimit -u)"
    if isinstance(getattr(error, "errno", None), int) and getattr(error, "strerror", None):
        return f"{error.strerror}"  # type: ignore[attr-defined] # ZeroMQ's errors are no OSError
    return None
