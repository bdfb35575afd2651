"""Replacing a file as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from inferir.ir.system.held_folder import held_folder

_PREFIX = ".inferir-file"


def replace_file(file: Path, raw: bytes) -> None:
    """Let `file` have the content `raw`, as `new_file` does. Raises OSError, with the old file in place."""
    with new_file(file) as out:
        write_all(out, raw)


@contextmanager
def new_file(file: Path) -> Iterator[FileIO]:
    """An unbuffered file to write to, which takes the place of `file` when the block succeeds, flushed to the disk.

    It is written in a private folder beside `file`; what a killed process left there is removed by the next one. A link
    stays a link: what it leads to is replaced. What is no regular file, such as /dev/stdout, is written to as it is.
    Raises OSError, with the old file in place and nothing left.
    """
    if _is_special(file):
        with open(file, "wb", buffering=0) as out:
            yield out
        return
    file = Path(os.path.realpath(file))
    with held_folder(file.parent, _PREFIX) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open("file", flags, 0o666, dir_fd=folder.descriptor), "wb", buffering=0) as out:
            yield out
            os.fsync(out.fileno())
        folder.move_out("file", file.name)
        sync_folder(folder.parent)


def write_all(out: FileIO, content: bytes | bytearray | memoryview) -> None:
    """Write all of `content` to an unbuffered file, which may take several calls. Raises OSError."""
    left = memoryview(content)
    while left:
        left = left[out.write(left) :]


def sync_folder(folder: int) -> None:
    """Ask for the names in a folder (a descriptor) to survive a loss of power, where the file system can promise it."""
    with contextlib.suppress(OSError):
        os.fsync(folder)


def _is_special(file: Path) -> bool:
    try:
        mode = os.stat(file).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
