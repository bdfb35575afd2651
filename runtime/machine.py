"""What this process may use of the machine, by every limit that holds for it: processors, memory, control groups."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from inferir.ir.errors import EngineError

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
MAX_THREADS = 1024
_UNLIMITED = 1 << 62
_USUAL_CACHE = 32 << 20
_CACHE_SIZE = re.compile(r"(\d+)([KMG]?)")


def thread_count(requested: int | None = None, *, root: Path = ROOT) -> int:
    """`requested`, or one thread per processor in the affinity mask, at most the cgroup's CPU quota (rounded up).

    `root` is where control groups are mounted. Raises `EngineError` for a request below 1 or absurdly large.
    """
    if requested is not None:
        if not 1 <= requested <= MAX_THREADS:
            raise EngineError(f"threads is {requested}; give a number from 1 to {MAX_THREADS}")
        return requested
    count = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return max(1, count if quota is None else min(count, -int(-quota // 1)))


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache of a processor, as the system describes it in `root`; 32 MiB where it does not."""
    sizes = []
    for file in root.glob("index*/size"):
        try:
            found = _CACHE_SIZE.fullmatch(file.read_text().strip())
        except OSError:
            continue
        if found:
            sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes, default=_USUAL_CACHE) or _USUAL_CACHE


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """The CPU quota of the process in processors: the smallest on the path from its cgroup (v2 or v1) to the root.

    None if it is unlimited.
    """
    found = [q for directory in directories("cpu", root, membership) if (q := _quota(directory)) is not None]
    return min(found, default=None)


def _quota(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        micros = int((directory / "cpu.cfs_quota_us").read_text())
        return None if micros <= 0 else micros / int((directory / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None


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


def directories(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Directories of the process's group and its ancestors, under every hierarchy that may limit `controller`.

    root: where control groups are mounted. membership: lines `id:controllers:path`, without controllers in version 2.
    """
    try:
        lines = membership.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    out = [root, root / controller]
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        for base in {root / controllers, root / controller} if controllers else {root}:
            directory = base
            out.append(directory)
            for part in path.strip("/").split("/"):
                directory = directory / part
                out.append(directory)
    return list(dict.fromkeys(out))
