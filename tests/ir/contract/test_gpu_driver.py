"""The driver's version from what its kernel module says, and what images need."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferir.ir.contract.gpu_driver import FLOORS, driver_floor, driver_version, version_text
from inferir.ir.errors import TargetError


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", (535, 104, 5)),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs@x)", (580, 95, 5)),
    ],
)
def test_versions(line: str, version: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "version").write_text(f"NVRM version: {line}\nGCC version:  gcc version 12.2.0\n")
    assert driver_version(tmp_path / "version") == version
    assert version_text(version) in line


def test_no_driver_and_a_strange_record(tmp_path: Path) -> None:
    assert driver_version(tmp_path / "none") is None
    (tmp_path / "version").write_text("nothing")
    with pytest.raises(TargetError, match="no version of an NVIDIA driver"):
        driver_version(tmp_path / "version")


def test_floors() -> None:
    assert (driver_floor("12.8"), driver_floor("13.0"), driver_floor("99.1"), driver_floor("?")) == (
        FLOORS[12],
        FLOORS[13],
        None,
        None,
    )
