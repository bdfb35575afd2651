"""How many threads to run, from what the process may really use."""

from __future__ import annotations

import os
import re
from pathlib import Path

from inferir.ir.errors import EngineError
from inferir.runtime.cgroups import MEMBERSHIP, ROOT, directories

MAX_THREADS = 1024
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
