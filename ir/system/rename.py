"""Renaming that exchanges two names, or refuses to replace: `renameat2`, which Python does not offer."""

from __future__ import annotations

import ctypes
import os
import platform
from errno import ENOSYS
from functools import cache
from typing import Any

_NOREPLACE, _EXCHANGE = 1, 2
_NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276}


def exchange(folder: int, name: str, other_folder: int, other: str) -> None:
    """Let two existing names, in folders given by descriptors, change places in one step.

    Raises OSError: EINVAL, ENOSYS or EOPNOTSUPP where the system or the file system cannot.
    """
    _rename(folder, name, other_folder, other, _EXCHANGE)


def rename_new(folder: int, name: str, other_folder: int, other: str) -> None:
    """Rename to a name that does not exist. Raises FileExistsError if it does, and OSError as `exchange`."""
    _rename(folder, name, other_folder, other, _NOREPLACE)


def _rename(folder: int, name: str, other_folder: int, other: str, flags: int) -> None:
    ctypes.set_errno(0)
    if _renameat2()(folder, os.fsencode(name), other_folder, os.fsencode(other), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name, None, other)


@cache
def _renameat2() -> Any:
    """The function of the C library, or the system call itself where an older library lacks it."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        function = library.renameat2
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return function
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    call = library.syscall
    call.restype = ctypes.c_long
    return lambda a, b, c, d, flags: call(
        ctypes.c_long(number), ctypes.c_int(a), ctypes.c_char_p(b), ctypes.c_int(c), ctypes.c_char_p(d), flags
    )
