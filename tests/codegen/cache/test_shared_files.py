"""Files that an artifact and the cache hold together."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inferir.codegen.cache import entry_files
from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache

KEY = CacheKey({"checkpoint": "c"})
CONTENT = os.urandom(5000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "artifact" / "w.safetensors"
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    return file


@pytest.fixture
def cache(tmp_path: Path, source: Path) -> CompileCache:
    """A cache that has the file."""
    cache = CompileCache(tmp_path / "cache")
    cache.keep_file("weights", KEY, "w", source)
    return cache


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache and artifact lie on two file systems."""

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(entry_files.os, "link", refuse)


def stored(cache: CompileCache) -> Path:
    assert cache.root is not None
    return cache.root / "v2" / "entries" / "weights" / KEY.digest / "w"


def test_bytes_are_on_the_disk_once(cache: CompileCache, source: Path, tmp_path: Path) -> None:
    assert stored(cache).samefile(source)
    assert cache.take_file("weights", KEY, "w", tmp_path / "again")
    assert (tmp_path / "again").samefile(source)
    assert (cache.hits, cache.misses) == (1, 0)
    (info,) = cache.ls()
    assert (info.nbytes, info.shared) == (5000, 5000)
    assert cache.verify() == []


def test_what_the_cache_alone_holds_is_not_shared(cache: CompileCache, source: Path) -> None:
    assert cache.prune(max_bytes=0) == []
    source.unlink()
    (info,) = cache.ls()
    assert info.shared == 0
    assert cache.prune(max_bytes=5000) == []
    assert [i.nbytes for i in cache.prune(max_bytes=4999)] == [5000]


def test_age_removes_what_is_shared_too(cache: CompileCache, source: Path) -> None:
    os.utime(stored(cache).parent / "index.json", (1000, 1000))
    assert len(cache.prune(max_age=60)) == 1
    assert source.read_bytes() == CONTENT


def test_nothing_stored_is_a_miss(tmp_path: Path, source: Path) -> None:
    for cache in (CompileCache(tmp_path / "cache"), CompileCache(None)):
        assert not cache.take_file("weights", KEY, "w", tmp_path / "out")
        assert cache.misses == 1
    CompileCache(None).keep_file("weights", KEY, "w", source)
    CompileCache(tmp_path / "other", readonly=True).keep_file("weights", KEY, "w", source)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifact"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: file.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])),
        lambda file: os.truncate(file, 4999),
        lambda file: file.unlink(),
    ],
    ids=["bit", "length", "missing"],
)
def test_a_changed_artifact_is_found_before_its_bytes_are_used(
    harm: Callable[[Path], object], cache: CompileCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harm(stored(cache))
    with caplog.at_level(logging.WARNING):
        assert not cache.take_file("weights", KEY, "w", tmp_path / "out")
    assert "entry dropped" in caplog.text
    assert not (tmp_path / "out").exists()
    assert cache.ls() == []


def test_others_may_not_write_to_what_the_cache_uses(tmp_path: Path) -> None:
    source = tmp_path / "w"
    source.write_bytes(CONTENT)
    source.chmod(0o666)
    cache = CompileCache(tmp_path / "cache")
    cache.keep_file("weights", KEY, "w", source)
    assert source.stat().st_mode & 0o777 == 0o644
    assert cache.take_file("weights", KEY, "w", tmp_path / "out")
    source.chmod(0o666)
    assert not cache.take_file("weights", KEY, "w", tmp_path / "again")
    assert stored(cache).exists()


@pytest.mark.usefixtures("no_links")
def test_without_links_a_small_file_is_copied(tmp_path: Path, source: Path) -> None:
    cache = CompileCache(tmp_path / "cache")
    cache.keep_file("weights", KEY, "w", source)
    assert not stored(cache).samefile(source)
    assert cache.take_file("weights", KEY, "w", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == CONTENT
    (info,) = cache.ls()
    assert (info.nbytes, info.shared) == (5000, 0)


@pytest.mark.usefixtures("no_links")
def test_without_links_a_large_file_is_not_kept(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_files, "COPIED", 4999)
    cache = CompileCache(tmp_path / "cache")
    cache.keep_file("weights", KEY, "w", source)
    assert cache.ls() == []
    assert os.listdir(tmp_path / "cache" / "v2" / "incoming") == []


def test_the_index_has_the_checksum_of_the_file(cache: CompileCache) -> None:
    body = json.loads((stored(cache).parent / "index.json").read_bytes())["body"]
    assert body["files"]["w"]["nbytes"] == 5000
    assert len(body["files"]["w"]["blake3"]) == 64
