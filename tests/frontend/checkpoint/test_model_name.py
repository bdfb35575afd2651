"""The name of a model, from whatever it was given as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferir.frontend.checkpoint.model_name import display_name
from inferir.frontend.source.model_source import load_source


def place(root: Path, path: str) -> Path:
    """A file for names in .gguf, else a folder."""
    out = root / path
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".gguf" and "folder" not in path:
        out.write_bytes(b"GGUF")
    else:
        out.mkdir()
    return out


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Mk-1.5B-Instruct", "Mk-1.5B-Instruct"),
        ("v0.1", "v0.1"),
        ("org/some-model", "some-model"),
        ("folder.gguf", "folder.gguf"),
        ("My.Model-1.5B-Q4_K_M.gguf", "My.Model-1.5B-Q4_K_M"),
        ("My.Model-1.5B.GGUF", "My.Model-1.5B"),
        ("Big-00001-of-00003.gguf", "Big"),
        ("a model with blanks", "a model with blanks"),
        (" ends in blanks ", "ends in blanks"),
        ("tab\tand\nline", "tab_and_line"),
        ("modèle-日本", "modèle-日本"),
        ("models--org--My.Model-1.5B/snapshots/0123abcd", "org/My.Model-1.5B"),
        ("models--gpt2/snapshots/0123abcd", "gpt2"),
        ("models--org--m/snapshots/0123abcd/m-Q4_0.gguf", "m-Q4_0"),
    ],
)
def test_name_of_a_path(path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(tmp_path, path)
    assert display_name(where) == name
    monkeypatch.chdir(where.parent)
    assert display_name(where.name) == name
    if where.is_dir():
        assert display_name(f"{where}/") == name
        assert display_name(f"{where}//./") == name
        monkeypatch.chdir(where)
        assert display_name(".") == name
        (where / "inner").mkdir()
        assert display_name("inner/..") == name
        monkeypatch.chdir(where / "inner")
        assert display_name("..") == name


def test_a_link_keeps_the_name_that_it_was_given(tmp_path: Path) -> None:
    snapshot = place(tmp_path, "models--org--m/snapshots/0123abcd")
    (tmp_path / "current").symlink_to(snapshot)
    assert display_name(tmp_path / "current") == "current"


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.d")
    os.mkdir(path)
    assert display_name(path) == "caf_.d"
    display_name(path).encode("utf-8")


def test_a_name_is_never_empty(tmp_path: Path) -> None:
    assert display_name("/") == "model"
    assert display_name(place(tmp_path, "  ")) == "model"


def test_what_is_on_disk_is_never_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, "snap/My.Model-1.5B-Q4_K_M.gguf")
    place(tmp_path, "org/model")
    (tmp_path / "org" / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    file = load_source("snap/My.Model-1.5B-Q4_K_M.gguf", "f32")
    assert (file.name, file.hub_id) == ("My.Model-1.5B-Q4_K_M", None)
    folder = load_source("org/model", "f32")
    assert (folder.name, folder.hub_id) == ("model", None)
    monkeypatch.chdir(tmp_path / "org" / "model")
    assert load_source(".", "f32").name == "model"
