"""Faulty model folders: each is read as transformers reads it, or refused in one typed line."""

from __future__ import annotations

from pathlib import Path

import folder_faults
import pytest

SEEDS = 150
GROUPS = 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Folders without fault, by whether they are sharded."""
    out = {sharded: tmp_path_factory.mktemp("whole") for sharded in (False, True)}
    for sharded, folder in out.items():
        folder_faults.write_whole(folder, sharded)
    return out


@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_without_fault_is_read(sharded: bool, whole: dict[bool, Path], tmp_path: Path) -> None:
    tensors = folder_faults.read_all(whole[sharded], tmp_path / "out")
    assert folder_faults.same_as_transformers(whole[sharded], tmp_path / "out", tensors) == ""


@pytest.mark.parametrize("group", range(GROUPS))
def test_faults(group: int, whole: dict[bool, Path], tmp_path: Path) -> None:
    results = []
    for seed in range(group, SEEDS, GROUPS):
        result, fault, message = folder_faults.outcome(whole[seed % 3 == 2], seed, tmp_path / "work")
        assert result in ("read", "refused", "lenient"), f"{seed}: {fault}: {message}"
        results.append(result)
    assert {"read", "refused"} <= set(results)
