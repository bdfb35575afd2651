"""A file is replaced as a whole, or stays as it was."""

import os
from pathlib import Path
from typing import Any

import pytest

from inferir.ir.atomic_file import replace_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for raw in (b"first", b"second, longer", b""):
        replace_file(file, raw)
        assert file.read_bytes() == raw
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.json"
    replace_file(file, b"old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
