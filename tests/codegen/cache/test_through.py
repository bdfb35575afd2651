"""What the frontend found out goes through the cache once."""

from pathlib import Path

import pytest

from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.cache.through import frontend_key, through_cache
from inferir.ir.errors import CacheError


def test_made_once_and_then_read(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "graph.ir").write_text("graph")
        (folder / "facts.json").write_text("{}")

    cache = CompileCache(tmp_path / "cache")
    key = frontend_key(model="m", trace_check=True)
    first = through_cache(cache, "graph", key, make)
    second = through_cache(cache, "graph", key, make)
    assert (cache.hits, cache.misses) == (1, 1)
    assert dict(first) == dict(second) == {"graph.ir": b"graph", "facts.json": b"{}"}
    assert len(made) == 1
    assert not made[0].exists()
    through_cache(cache, "graph", frontend_key(model="n", trace_check=True), make)
    assert len(made) == 2


def test_nothing_is_made_for_a_cache_that_cannot_keep_it(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        raise AssertionError("made for nothing")

    with pytest.raises(CacheError, match="read-only"):
        through_cache(CompileCache(tmp_path, readonly=True), "graph", frontend_key(model="m"), make)


def test_the_key_names_the_tools() -> None:
    components = frontend_key(model="m").components
    assert set(components) == {"model", "tracer", "toolchain"}
    assert set(components["toolchain"]) == {"torch", "transformers", "tokenizers"}  # type: ignore[arg-type]
