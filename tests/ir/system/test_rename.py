"""Exchanging two names, and renaming without replacing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferir.ir.system import rename
from inferir.ir.system.rename import exchange, rename_new


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["function", "system call"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With the C library's function, and as with a library that lacks it."""
    rename._renameat2.cache_clear()
    if request.param == "system call":
        monkeypatch.setattr(rename, "hasattr", lambda *_: False, raising=False)
    yield
    rename._renameat2.cache_clear()


def test_two_folders_change_names(tmp_path: Path, folder: int) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"was-{name}").touch()
    exchange(folder, "a", folder, "b")
    assert (os.listdir(tmp_path / "a"), os.listdir(tmp_path / "b")) == (["was-b"], ["was-a"])


def test_an_exchange_needs_both_names(tmp_path: Path, folder: int) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(folder, "a", folder, "b")
    assert os.listdir(tmp_path) == ["a"]


def test_a_new_name_replaces_nothing(tmp_path: Path, folder: int) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        rename_new(folder, "a", folder, "b")
    rename_new(folder, "a", folder, "ü\udcff")
    assert sorted(os.listdir(tmp_path)) == ["b", "ü\udcff"]


def test_a_machine_whose_call_is_not_known_has_none(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rename, "hasattr", lambda *_: False, raising=False)
    monkeypatch.setattr(rename.platform, "machine", lambda: "pdp11")
    rename._renameat2.cache_clear()
    with pytest.raises(OSError, match="not implemented") as caught:
        rename_new(folder, "a", folder, "b")
    assert caught.value.errno == errno.ENOSYS
