"""How much memory this process may still take, by every limit that holds for it."""

from __future__ import annotations

import resource
from pathlib import Path

from inferir.runtime.cgroups import MEMBERSHIP, ROOT, directories

_UNLIMITED = 1 << 62


def available_bytes(meminfo: str | None = None, *, root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """What the system has available, within the memory limits of the process's control groups and its own limits of
    address space and data (`ulimit -v`, `ulimit -d`).

    meminfo: the text of /proc/meminfo. root, membership: see `directories`.
    """
    if meminfo is None:
        meminfo = _text(Path("/proc/meminfo"))
    bounds = [_kilobytes(meminfo, "MemAvailable")]
    bounds += [_group_bytes(directory) for directory in directories("memory", root, membership)]
    status = _text(Path("/proc/self/status"))
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            bounds.append(soft - (_kilobytes(status, used) or 0))
    return max(0, min((b for b in bounds if b is not None), default=_UNLIMITED))


def _group_bytes(directory: Path) -> int | None:
    """What one control group leaves; None without a limit. Pages of files that nobody used lately count as free, since
    the system takes them back.
    """
    version2 = [_number(directory / name) for name in ("memory.max", "memory.high")]
    version1 = _number(directory / "memory.limit_in_bytes")
    limits = [n for n in (*version2, version1) if n is not None]
    used = _number(directory / ("memory.usage_in_bytes" if version1 is not None else "memory.current"))
    if not limits or used is None:
        return None
    inactive = 0
    for line in _text(directory / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == ("total_inactive_file" if version1 is not None else "inactive_file") and value.isdigit():
            inactive = int(value)
    return max(0, min(limits) - max(0, used - inactive))


def _kilobytes(text: str, name: str) -> int | None:
    """The value in bytes of a line `name: 12 kB`."""
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
