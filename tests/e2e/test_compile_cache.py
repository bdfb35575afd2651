"""The compile cache as its users meet it: shared, damaged, moved, read-only, switched off, killed half-way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
from serving import alive

from inferir import LLM
from inferir.cli.compile_report import RecordingCache
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.compile.compiler import CompileOptions, compile_model
from inferir.ir.errors import CacheError

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 1, "max_num_seqs": 1, "buckets": "1", "block_size": 16, "jobs": 1}
LIMITS |= {"dtype": "f32", "max_model_len": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.write(families.llama(), tmp_path_factory.mktemp("model") / "m")


def compile_with(model: Path, out: Path, folder: Path | None, **options: Any) -> RecordingCache:
    """The cache that a compile used."""
    cache = RecordingCache(folder)
    compile_model(str(model), out, CompileOptions(**{**LIMITS, **options}), cache=cache)
    return cache


def logits(artifact: Path) -> np.ndarray:
    with LLM(artifact, threads=1) as llm:
        return llm.logits([PROMPT])[0]


@pytest.fixture(scope="module")
def warm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds everything for `model` with `LIMITS`. Copy it before changing it."""
    root = tmp_path_factory.mktemp("warm")
    compile_with(model, root / "art", root / "cache")
    return root


def command(model: Path, out: Path, cache: Path, temporary: Path | None = None) -> subprocess.Popen[str]:
    flags = ["--dtype", "f32", "--max-model-len", "64", "--max-num-batched-tokens", "1", "--max-num-seqs", "1"]
    flags += ["--buckets", "1", "--block-size", "16", "--jobs", "1"]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from inferir.cli.main import main; main()",
            "compile",
            str(model),
            "-o",
            str(out),
            *flags,
        ],
        env={**os.environ, "INFERIR_CACHE": str(cache), "TMPDIR": str(temporary or tempfile.gettempdir())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def leftovers(cache: Path) -> list[Path]:
    return [p for p in cache.rglob("*") if p.name.startswith(".") or p.parent.name == "incoming"]


def builders(parent: int) -> list[int]:
    """Processes of `parent` that build kernels."""
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"build_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


def test_processes_that_compile_at_once_all_succeed(model: Path, tmp_path: Path) -> None:
    running = [command(model, tmp_path / f"art{i}", tmp_path / "cache") for i in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    libraries = [(tmp_path / f"art{i}" / "kernels" / "t1.so").read_bytes() for i in range(2)]
    assert libraries[0] == libraries[1]
    again = compile_with(model, tmp_path / "again", tmp_path / "cache")
    assert again.misses == 0
    assert again.hits > 3
    assert leftovers(tmp_path / "cache") == []


def test_every_setting_gives_what_a_fresh_cache_gives(model: Path, warm: Path, tmp_path: Path) -> None:
    shutil.copytree(warm / "cache", tmp_path / "cache")
    first = {"dtype": "f32", "opt_level": 2, "block_size": 16, "max_model_len": 64}
    changes: list[dict[str, Any]] = [
        {"dtype": "bf16"},
        {"opt_level": 0},
        {"block_size": 32},
        {"max_model_len": 32},
    ]
    for i, change in enumerate(changes):
        options = {**first, **change}
        compile_with(model, tmp_path / f"shared{i}", tmp_path / "cache", **options)
        compile_with(model, tmp_path / f"fresh{i}", None, **options)
        assert np.array_equal(logits(tmp_path / f"shared{i}"), logits(tmp_path / f"fresh{i}")), change
    compile_with(model, tmp_path / "again", tmp_path / "cache", **first)
    assert np.array_equal(logits(tmp_path / "again"), logits(warm / "art"))


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_a_damaged_file_is_named_and_rebuilt(
    damage: str, model: Path, warm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(warm / "cache", cache)
    entries = cache / "v2" / "entries"
    hurt = [
        next(p for p in sorted((entries / kind).rglob("*")) if p.is_file()) for kind in ("graph", "bucket", "weights")
    ]
    for file in hurt:
        content = file.read_bytes()
        if damage == "flip":
            middle = len(content) // 2
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        else:
            file.unlink()
    used = compile_with(model, tmp_path / "art", cache)
    assert used.misses == len(hurt)
    for file in hurt:
        assert str(file) in caplog.text
    assert np.array_equal(logits(tmp_path / "art"), logits(warm / "art"))
    assert compile_with(model, tmp_path / "art", cache).misses == 0


def test_model_and_cache_may_move(model: Path, warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, cache = tmp_path / "elsewhere" / "renamed", tmp_path / "other" / "cache"
    shutil.copytree(model, moved)
    shutil.copytree(warm / "cache", cache)
    for file in [*moved.rglob("*"), *cache.rglob("*")]:
        os.utime(file, (1, 1))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    assert compile_with(moved, tmp_path / "art", cache).misses == 0
    changed = compile_with(moved, tmp_path / "art", cache, block_size=32)
    assert any("block" in reason for reason in changed.reasons.values()), changed.reasons


def test_a_readonly_cache_that_has_everything_is_enough(model: Path, warm: Path, tmp_path: Path) -> None:
    before = sorted(p for p in (warm / "cache").rglob("*"))
    options = CompileOptions(**LIMITS)
    cache = CompileCache(warm / "cache", readonly=True)
    compile_model(str(model), tmp_path / "art", options, cache=cache)
    assert cache.misses == 0
    assert sorted(p for p in (warm / "cache").rglob("*")) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CacheError, match=str(empty)):
        compile_model(str(model), tmp_path / "no", options, cache=CompileCache(empty, readonly=True))
    assert not (tmp_path / "no").exists()


def test_without_a_cache_nothing_is_kept(
    model: Path, warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    compile_with(model, tmp_path / "art", None)
    assert np.array_equal(logits(tmp_path / "art"), logits(warm / "art"))
    assert list((tmp_path / "home").iterdir()) == []


def test_a_killed_compile_leaves_nothing_in_the_way(model: Path, tmp_path: Path) -> None:
    """Killed alone, without its build processes, while it starts, traces, builds or writes."""
    cache, place, temporary = tmp_path / "cache", tmp_path / "place", tmp_path / "tmp"
    place.mkdir()
    temporary.mkdir()
    for seconds in (0.5, 3.0, 5.0):
        process = command(model, place / "art", cache, temporary)
        time.sleep(seconds)
        process.kill()
        process.communicate()
    process = command(model, place / "art", cache, temporary)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert logits(place / "art").shape[0] == len(PROMPT)
    assert leftovers(cache) == []
    assert [p.name for p in place.iterdir()] == ["art"]
    assert list(temporary.glob("inferir-trace-*")) == []


def test_build_processes_end_with_a_killed_compile(model: Path, tmp_path: Path) -> None:
    process = command(model, tmp_path / "art", tmp_path / "cache", tmp_path)
    workers = until(lambda: builders(process.pid))
    process.kill()
    process.wait()
    until(lambda: not any(map(alive, workers)))
    process.communicate()
    assert not (tmp_path / "art").exists()


def test_a_cache_that_others_may_write_to_is_named_and_not_used(model: Path, warm: Path, tmp_path: Path) -> None:
    """The compile goes on without it."""
    cache = tmp_path / "cache"
    shutil.copytree(warm / "cache", cache)
    library = next((cache / "v2" / "entries" / "bucket").glob("*/module.so"))
    library.write_bytes(b"forged")
    cache.chmod(0o777)
    before = {p: p.stat().st_mtime_ns for p in cache.rglob("*")}
    process = command(model, tmp_path / "art", cache, tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    (line,) = errors.splitlines()
    assert line.startswith(f"inferir: warning: codegen: compile cache: {cache} can be written to by other users")
    assert "Compile cache: 0 hits" in out
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*")} == before
    assert np.array_equal(logits(tmp_path / "art"), logits(warm / "art"))


def test_a_link_in_the_cache_is_named_and_what_is_behind_it_stays(model: Path, warm: Path, tmp_path: Path) -> None:
    cache, precious = tmp_path / "cache", tmp_path / "precious"
    shutil.copytree(warm / "cache", cache)
    (precious / "deep").mkdir(parents=True)
    (precious / "deep" / "file").touch()
    (cache / "v2" / "incoming").rmdir()
    (cache / "v2" / "incoming").symlink_to(precious)
    process = command(model, tmp_path / "art", cache, tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    (line,) = errors.splitlines()
    assert f"{cache / 'v2' / 'incoming'} is a link" in line
    assert "everything came from it" in out
    assert (precious / "deep" / "file").exists()
