"""Which NVIDIA driver the device images of an artifact need, and which one a machine has."""

from __future__ import annotations

import re
from pathlib import Path

from inferir.ir.errors import TargetError

RECORD = Path("/proc/driver/nvidia/version")
"""Where the kernel module says its version, in containers as well."""

FLOORS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""Least driver for images made by tools of a CUDA major version (NVIDIA, CUDA Compatibility: minor version
compatibility)."""

_VERSION = re.compile(r"Kernel Module\b.*?\s(\d{3,}(?:\.\d+)+)\s")


def driver_floor(tools: str) -> tuple[int, ...] | None:
    """The least driver for images of that version of ptxas, such as "12.8"; None for one that is not known."""
    major = tools.partition(".")[0]
    return FLOORS.get(int(major)) if major.isdigit() else None


def driver_version(record: Path = RECORD) -> tuple[int, ...] | None:
    """The driver that `record`, a file as `RECORD`, tells of; None if it is not there.

    Raises `TargetError` for text that tells of none, `OSError` for a file that cannot be read.
    """
    try:
        text = record.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = _VERSION.search(f"{text}\n")
    if found is None:
        raise TargetError(f"{record}: no version of an NVIDIA driver in it")
    return tuple(map(int, found[1].split(".")))


def version_text(version: tuple[int, ...]) -> str:
    """As NVIDIA writes it: 525.60.13, 580.65.06."""
    return ".".join(f"{part:02d}" for part in version)
