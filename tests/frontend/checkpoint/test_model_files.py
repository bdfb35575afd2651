"""Files of a model folder are read as what they should be, or refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferir.frontend.checkpoint.model_files import optional_json, read_json, read_text, there
from inferir.ir.errors import FrontendError


def test_line_ends_are_those_of_text_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("é\r\nb\rc\n".encode())
    assert read_text(file) == file.read_text(encoding="utf-8") == "é\nb\nc\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1]", "does not hold a JSON object"),
        (b"{", "cannot be read"),
        (b'"\xff"', "it is not UTF-8"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_object_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(FrontendError, match=rf"config\.json .*{reason}"):
        read_json(file)


def test_a_missing_file_is_named_unless_it_is_optional(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"config\.json is missing from"):
        read_json(tmp_path / "config.json")
    assert optional_json(tmp_path / "config.json") == {}


def test_a_link_to_nothing_is_there(tmp_path: Path) -> None:
    link = tmp_path / "config.json"
    link.symlink_to(tmp_path / "gone")
    assert there(link)
    with pytest.raises(FrontendError, match=r"config\.json is missing"):
        optional_json(link)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(FrontendError, match="it is not a file"):
        read_json(tmp_path / "config.json")
