"""Raw memory for kernels: zeroed, page-aligned, huge pages advised."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.manifest import ALIGNMENT
from inferir.ir.errors import EngineError

Bytes = npt.NDArray[np.uint8]

_MADV_POPULATE_READ = 22  # Linux 5.14; not in every Python's mmap module
_PIECE = 64 << 20  # bytes of a file that are read again at once
_ENOUGH = 0.75  # of a file in huge pages


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


def allocate(nbytes: int, what: str, hint: str = "") -> Bytes:
    """Zeroed private memory that lives as long as the array. Pages are taken from the system when first touched.

    Raises `EngineError` naming `what` and the size, and ending with `hint`, if the system refuses.
    """
    try:
        region = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise EngineError(f"cannot allocate {nbytes} bytes for {what}: {reason}{hint}") from None
    _advise(region, mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, dtype=np.uint8)[:nbytes]


def map_file(path: Path) -> Bytes:
    """The content of a file, mapped read-only and shared with other processes. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return np.zeros(0, dtype=np.uint8)
        region = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        _advise(region, mmap.MADV_HUGEPAGE)
        _advise(region, _MADV_POPULATE_READ)
        content = np.frombuffer(region, dtype=np.uint8)
        if size >= _PIECE and _huge_bytes(content) < _ENOUGH * size:
            _renew(region, content, file.fileno())
    return content


def _renew(region: mmap.mmap, content: Bytes, file: int) -> None:
    """Have the page cache read the file again, by faults that ask for huge pages.

    It holds a file in the pages that it was written or first read in, and in small ones after `cp`, a download, or when
    memory was short: a step of one sequence then takes a tenth longer. Pages in use elsewhere or not yet on disk stay.
    Stops after the first piece if nothing comes of it, as on a file system without huge pages.
    """
    before = _huge_bytes(content)
    for start in range(0, len(content), _PIECE):
        piece = start, min(_PIECE, len(content) - start)
        _advise(region, mmap.MADV_DONTNEED, *piece)
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, *piece, os.POSIX_FADV_DONTNEED)
        _advise(region, _MADV_POPULATE_READ, *piece)
        if start == 0 and _huge_bytes(content) <= before < piece[1] // 2:
            return


def _huge_bytes(content: Bytes, smaps: Path = Path("/proc/self/smaps")) -> int:
    """How much of a mapped file the processor reaches through huge pages."""
    start = f"{address(content):x}-"
    inside = False
    try:
        lines = smaps.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if inside and line.startswith("FilePmdMapped:"):
            return int(line.split()[1]) * 1024
        if "-" in line.partition(" ")[0]:
            inside = line.startswith(start)
    return 0


def address(array: npt.NDArray[Any]) -> int:
    """Address of an array's first element."""
    return int(array.ctypes.data)


def _advise(region: mmap.mmap, advice: int, start: int = 0, length: int | None = None) -> None:
    with contextlib.suppress(OSError):  # advice only: kernels without it refuse
        region.madvise(advice, start, len(region) if length is None else length)
