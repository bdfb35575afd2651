"""Where a verification ran: versions, processor, target."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata

from inferir import __version__
from inferir.ir.contract.manifest import Manifest

_LIBRARIES = ("torch", "transformers", "numpy")


def environment(manifest: Manifest, threads: int) -> dict[str, str]:
    """What may explain that another run gives other numbers, in the order in which it is shown."""
    return {
        "inferir": __version__,
        **{name: _version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "compute threads": str(threads),
        "target": manifest.target.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def processor(cpuinfo: str | None = None) -> str:
    """The processor's name as the system gives it, and how many this process may use; `cpuinfo`: the file's text."""
    if cpuinfo is None:
        try:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
                cpuinfo = file.read()
        except OSError:
            cpuinfo = ""
    names = (line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    return f"{next(names, platform.machine())}, {len(os.sched_getaffinity(0))} usable"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
