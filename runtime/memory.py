"""Raw memory for kernels: zeroed, page-aligned, huge pages advised."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.artifact import ALIGNMENT
from inferir.ir.errors import EngineError

Bytes = npt.NDArray[np.uint8]

_MADV_POPULATE_READ = 22  # Linux 5.14; not in every Python's mmap module


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


def allocate(nbytes: int, what: str) -> Bytes:
    """Zeroed private memory that lives as long as the array. Pages are taken from the system when first touched.

    Raises `EngineError` naming `what` and the size if the system refuses.
    """
    try:
        region = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as e:
        raise EngineError(f"cannot allocate {nbytes} bytes for {what}: {e}") from None
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
    return np.frombuffer(region, dtype=np.uint8)


def address(array: npt.NDArray[Any]) -> int:
    """Address of an array's first element."""
    return int(array.ctypes.data)


def _advise(region: mmap.mmap, advice: int) -> None:
    with contextlib.suppress(OSError):  # advice only: kernels without it refuse
        region.madvise(advice)


def available_bytes(meminfo: str | None = None) -> int:
    """Memory that this process may still take: what the system has available, within the memory limit of its cgroup."""
    if meminfo is None:
        meminfo = _read("/proc/meminfo") or ""
    available = 1 << 62
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        top, current = _read(limit), _read(used)
        if top and current and top.strip().isdigit() and current.strip().isdigit():
            available = min(available, max(0, int(top) - int(current)))
    return available


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
