"""`inferir cache`: list, explain, check, make room."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache

BUCKET = {"bucket": {"lo": 2, "hi": 9, "decode": False}, "target": {"name": "x86-64-v3"}, "regions": ["a", "b"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with three entries; the graph was used last an hour ago, the weight a day ago."""
    folder = tmp_path / "cache"
    cache = CompileCache(folder)
    cache.put("bucket", CacheKey(BUCKET), {"module.so": b"x" * 3000, "kernels.json": b"{}"})
    cache.put("graph", CacheKey({"model": "f" * 64}), {"graph.txt": b"g" * 50})
    cache.put("weight", CacheKey({"checkpoint": "c" * 64, "dtype": "bf16"}), {"tensor": b"w" * 200})
    for entry in cache.ls():
        used = time.time() - {"bucket": 0, "graph": 1, "weight": 24}[entry.kind] * 3600
        os.utime(folder / "v2" / "entries" / entry.kind / entry.digest / "index.json", (used, used))
    return folder


def test_ls(cli: Callable[..., Any], root: Path) -> None:
    result = cli("cache", "ls", "--cache", root)
    assert result.status == 0
    lines = [line.split() for line in result.out.splitlines()]
    row = next(line for line in lines if line[:1] == ["bucket"])
    assert row[1] == CacheKey(BUCKET).digest[:12]
    assert row[2:-2] == ["2-8", "tokens,", "x86-64-v3,", "2", "kernels", "2.9", "KiB"]
    assert row[-1] == "s"  # its age
    assert next(line for line in lines if line[:1] == ["graph"])[-2:] == ["1", "h"]
    assert "3 entries; bucket 2.9 KiB, graph 50 B, weight 200 B" in " ".join(result.out.split())


def test_ls_json(cli: Callable[..., Any], root: Path) -> None:
    entries = cli("cache", "ls", "--cache", root, "--json").json
    assert [(e["kind"], e["bytes"]) for e in entries] == [("bucket", 3002), ("graph", 50), ("weight", 200)]
    assert entries[0]["files"] == ["kernels.json", "module.so"]


def test_ls_of_an_empty_cache(cli: Callable[..., Any], tmp_path: Path) -> None:
    assert cli("cache", "ls", "--cache", tmp_path).out == f"{tmp_path}: 0 entries\n"


def test_the_environment_names_the_cache(
    cli: Callable[..., Any], fails: Callable[..., str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERIR_CACHE", str(root))
    assert len(cli("cache", "ls", "--json").json) == 3
    monkeypatch.setenv("INFERIR_CACHE", "off")
    assert "switched off" in fails("cache", "ls")


def test_explain(cli: Callable[..., Any], root: Path) -> None:
    digest = CacheKey(BUCKET).digest
    result = cli("cache", "explain", digest[:8], "--cache", root)
    words = " ".join(result.out.split())
    assert f"bucket {digest} 2 files (kernels.json, module.so), 2.9 KiB" in words
    assert "bucket.hi 9 bucket.lo 2" in words
    assert 'target.name "x86-64-v3"' in words
    assert cli("cache", "explain", digest[:8], "--cache", root, "--json").json["components"] == BUCKET


def test_explain_needs_one_entry(fails: Callable[..., str], root: Path) -> None:
    assert "no entry starts with 'xyz'" in fails("cache", "explain", "xyz", "--cache", root)
    assert "3 entries start with ''" in fails("cache", "explain", "", "--cache", root)


def test_verify_of_an_intact_cache(cli: Callable[..., Any], root: Path) -> None:
    result = cli("cache", "verify", "--cache", root)
    assert (result.status, result.out) == (0, f"{root}: 3 entries intact, 0 damaged and dropped\n")


def test_verify_reports_a_damaged_file(cli: Callable[..., Any], root: Path) -> None:
    file = root / "v2" / "entries" / "bucket" / CacheKey(BUCKET).digest / "module.so"
    file.write_bytes(b"x" * 2999 + b"y")
    result = cli("cache", "verify", "--cache", root)
    assert result.status == 1
    assert result.out == f"{file}: checksum mismatch\n{root}: 2 entries intact, 1 damaged and dropped\n"
    assert cli("cache", "verify", "--cache", root).status == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_report_of_a_failure_reaches_a_pipe(root: Path, form: list[str]) -> None:
    """Standard output that is no terminal is buffered, and this process ends with a status of its own."""
    (damaged,) = root.glob("v2/entries/bucket/*/module.so")
    damaged.write_bytes(b"x")
    command = [sys.executable, "-P", "-m", "inferir", "cache", "verify", "--cache", str(root), *form]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert str(damaged) in ended.stdout


def test_verify_json(cli: Callable[..., Any], root: Path) -> None:
    file = root / "v2" / "entries" / "bucket" / CacheKey(BUCKET).digest / "module.so"
    file.unlink()
    result = cli("cache", "verify", "--cache", root, "--json")
    damaged = [{"file": str(file), "reason": "missing"}]
    assert (result.status, result.json) == (1, {"damaged": damaged, "refused": [], "intact": 2})


def test_prune_by_age(cli: Callable[..., Any], root: Path) -> None:
    result = cli("cache", "prune", "--older-than", "2h", "--cache", root)
    assert result.out == f"{root}: removed 1 entry (200 B), 2 entries left (3.0 KiB)\n"
    assert {e["kind"] for e in cli("cache", "ls", "--cache", root, "--json").json} == {"bucket", "graph"}


def test_prune_by_size(cli: Callable[..., Any], root: Path) -> None:
    removed = cli("cache", "prune", "--max-size", "3kB", "--cache", root, "--json").json
    assert ([e["kind"] for e in removed["removed"]], removed["left"]) == (["weight", "graph", "bucket"], 0)


def test_prune_needs_a_limit(cli: Callable[..., Any], root: Path) -> None:
    result = cli("cache", "prune", "--cache", root)
    assert result.status == 2
    assert "--max-size" in result.err
    assert len(cli("cache", "ls", "--cache", root, "--json").json) == 3


@pytest.mark.parametrize("option", [("--max-size", "big"), ("--older-than", "old")])
def test_prune_refuses_bad_limits(fails: Callable[..., str], root: Path, option: tuple[str, str]) -> None:
    assert f"{option[0]}: '{option[1]}' is not a" in fails("cache", "prune", *option, "--cache", root)


@pytest.mark.parametrize("command", [("ls",), ("explain", "a"), ("verify",), ("prune", "--max-size", "0")])
def test_a_cache_that_others_may_write_to_is_refused(
    command: tuple[str, ...], root: Path, fails: Callable[..., str]
) -> None:
    root.chmod(0o777)
    before = sorted(root.rglob("*"))
    said = fails("cache", *command, "--cache", root)
    assert f"compile cache {root}: {root} can be written to by other users" in said
    assert sorted(root.rglob("*")) == before


def test_verify_names_links_and_leaves_them(root: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    file = root / "v2" / "entries" / "bucket" / CacheKey(BUCKET).digest / "module.so"
    file.rename(tmp_path / "module.so")
    file.symlink_to(tmp_path / "module.so")
    linked = root / "v2" / "entries" / "linked"
    linked.symlink_to(tmp_path)
    result = cli("cache", "verify", "--cache", root)
    assert result.status == 1
    assert result.out.splitlines()[:2] == [f"{linked}: is a link", f"{file}: is a link"]
    assert result.out.endswith("2 entries intact, 0 damaged and dropped, 2 refused and left\n")
    assert (tmp_path / "module.so").exists()
    named = cli("cache", "verify", "--cache", root, "--json").json["refused"]
    assert named == [{"file": str(p), "reason": "is a link"} for p in (linked, file)]
