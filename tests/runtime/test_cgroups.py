"""Where limits of control groups may stand, for what the kernel says of the process's membership."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferir.runtime.machine import directories


@pytest.mark.parametrize(
    ("membership", "expected"),
    [
        pytest.param("0::/\n", [".", "memory"], id="version 2, in its root"),
        pytest.param("0::/a/b\n", [".", "memory", "a", "a/b"], id="version 2"),
        pytest.param("4:memory:/x\n", [".", "memory", "memory/x"], id="version 1"),
        pytest.param("3:cpu,cpuacct:/x\n", [".", "memory"], id="version 1, another controller"),
        pytest.param("3:cpu,memory:/x\n", [".", "memory", "cpu,memory", "cpu,memory/x", "memory/x"], id="two at once"),
        pytest.param("4:memory:/x\n0::/y\n", [".", "memory", "memory/x", "y"], id="both versions"),
        pytest.param("0::/a:b\n", [".", "memory", "a:b"], id="a colon in the name"),
        pytest.param("nonsense\n\n", [".", "memory"], id="no membership"),
    ],
)
def test_directories(membership: str, expected: list[str], tmp_path: Path) -> None:
    file = tmp_path / "cgroup"
    file.write_text(membership)
    root = tmp_path / "fs"
    assert set(directories("memory", root, file)) == {root / name for name in expected}


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert directories("cpu", tmp_path, tmp_path / "missing") == [tmp_path, tmp_path / "cpu"]
