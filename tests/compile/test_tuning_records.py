"""Files of tuning records: what is written is read back, and everything else is named and refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.compile.tuning_records import TuningKey, TuningRecord, read_records, write_records
from inferir.ir.contract.target import Target
from inferir.ir.errors import TuningError

KEY = TuningKey(
    k=64,
    n=128,
    dtype="bf16",
    interleave=1,
    lo=2,
    most=4,
    target=Target.named("x86-64-v3"),
    threads=2,
    generator="g",
)
RECORD = TuningRecord(
    key=KEY,
    default={"rows": 4, "panel": 4, "blocks": 1},
    tile={"rows": 2, "panel": 4, "blocks": 2},
    default_seconds=3e-5,
    seconds=2e-5,
    spread=1e-6,
    candidates=4,
    rounds=20,
)
HELD = msgspec.structs.replace(RECORD, key=msgspec.structs.replace(KEY, threads=3), tile=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "records.json"
    write_records(path, [RECORD, HELD])
    return path


@pytest.fixture
def edited(file: Path) -> Callable[..., Path]:
    """The file with its document changed by a function."""

    def edit(change: Callable[[Any], object]) -> Path:
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document))
        return file

    return edit


def refusal(file: Path) -> str:
    with pytest.raises(TuningError) as caught:
        read_records(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message


def test_records_are_read_back(file: Path) -> None:
    assert read_records(file) == (RECORD, HELD)
    assert json.loads(file.read_text())["format"] == 1
    assert list(file.parent.iterdir()) == [file]


def test_no_records(tmp_path: Path) -> None:
    write_records(tmp_path / "none.json", [])
    assert read_records(tmp_path / "none.json") == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format=2), "format 2, this version of Inferir reads format 1"),
        (lambda d: d.pop("format"), "not a file of tuning records"),
        (lambda d: d["records"][0].pop("spread"), "missing required field `spread`"),
        (lambda d: d["records"][0]["tile"].update(rows=0), "`int` >= 1 - at `$.records[0].tile["),
        (lambda d: d["records"][0]["tile"].update(panel=2**40), "`int` <= 1048576"),
        (lambda d: d["records"][0].update(vectors=2), "unknown field `vectors`"),
        (lambda d: d["records"][1]["key"].update(threads="two"), "key.threads"),
        (lambda d: d["records"][1]["key"]["target"].pop("mcpu"), "key.target"),
        (lambda d: d["records"].append(d["records"][0]), "two records have the same key"),
    ],
)
def test_what_is_wrong_is_named(edited: Callable[..., Path], change: Callable[[Any], object], words: str) -> None:
    assert words in refusal(edited(change))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"\xff"', b"null", b'{"format": "1"}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "records.json"
    file.write_bytes(content)
    assert "not a file of tuning records" in refusal(file)


def test_a_cut_file_is_refused(file: Path) -> None:
    raw = file.read_bytes()
    for size in range(0, len(raw) - 2, 97):
        file.write_bytes(raw[:size])
        refusal(file)


def test_places_that_are_no_file(tmp_path: Path) -> None:
    assert "not found; `inferir tune` writes" in refusal(tmp_path / "missing.json")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    with pytest.raises(TuningError, match=r"no/file\.json: cannot be written: No such file"):
        write_records(tmp_path / "no" / "file.json", [RECORD])
    (tmp_path / "folder").mkdir()
    with pytest.raises(TuningError, match="folder: cannot be written"):
        write_records(tmp_path / "folder", [RECORD])
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TuningError, match="No space left on device"):
        write_records(file, [])
    assert read_records(file) == (RECORD, HELD)
    assert list(file.parent.iterdir()) == [file]
