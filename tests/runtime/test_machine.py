"""Threads, memory and option values as the machine and the user give them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_limits import limits

from inferir.ir.errors import EngineError
from inferir.runtime import memory
from inferir.runtime.engine.engine_options import EngineOptions, parse_bytes
from inferir.runtime.machine import available_bytes, cpu_quota, last_level_cache_bytes, thread_count
from inferir.runtime.memory import address, align, allocate, map_file

LIMITS = limits(max_model_len=100, max_tokens=16)


def group(root: Path, path: str, **files: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / path / name.replace("__", ".")).write_text(content)


def test_threads_follow_affinity(tmp_path: Path) -> None:
    everything = os.sched_getaffinity(0)
    assert thread_count(root=tmp_path) == len(everything)
    try:
        os.sched_setaffinity(0, {min(everything)})
        assert thread_count(root=tmp_path) == 1
    finally:
        os.sched_setaffinity(0, everything)


def test_threads_follow_the_quota(tmp_path: Path) -> None:
    group(tmp_path, "", cpu__max="50000 100000\n")
    assert thread_count(root=tmp_path) == 1


@pytest.mark.parametrize(("requested", "threads"), [(1, 1), (7, 7)])
def test_threads_as_requested(requested: int, threads: int) -> None:
    assert thread_count(requested) == threads


@pytest.mark.parametrize("requested", [0, -1, 10**6])
def test_threads_out_of_range(requested: int) -> None:
    with pytest.raises(EngineError, match=f"threads is {requested}"):
        thread_count(requested)


def test_quota_is_the_smallest_on_the_path(tmp_path: Path) -> None:
    member = tmp_path / "self"
    root = tmp_path / "cgroup"
    member.write_text("0::/pod/app\n")
    group(root, "", cpu__max="max 100000")
    assert cpu_quota(root, member) is None
    group(root, "pod", cpu__max="250000 100000")
    group(root, "pod/app", cpu__max="400000 100000")
    assert cpu_quota(root, member) == 2.5
    member.write_text("4:cpu,cpuacct:/job\n2:memory:/job\n")
    group(root, "cpu,cpuacct/job", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    group(root, "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert cpu_quota(root, member) == 1.5
    assert cpu_quota(tmp_path / "none", tmp_path / "none") is None


def test_memory_is_zeroed_aligned_and_sized() -> None:
    memory = allocate(1000, "a test")
    assert (memory.shape, memory.dtype, int(memory.sum()), address(memory) % 4096) == ((1000,), np.uint8, 0, 0)
    memory[:] = 7
    assert allocate(0, "nothing").size == 0
    with pytest.raises(EngineError, match=r"cannot allocate .* bytes for the moon"):
        allocate(1 << 60, "the moon")
    assert [align(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_mapped_file_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    mapped = map_file(path)
    assert mapped.tobytes() == b"abc"
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    path.write_bytes(b"")
    assert map_file(path).size == 0


@pytest.mark.parametrize(
    ("huge", "pieces"),
    [([0, 0, 1 << 20], [0, 1, 2, 3]), ([0, 0, 0], [0]), ([3 << 20], [])],
    ids=["read again", "no huge pages here", "in huge pages already"],
)
def test_a_file_in_small_pages_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, huge: list[int], pieces: list[int]
) -> None:
    """`huge`: bytes in huge pages when the file has been mapped, before and after its first piece is read again."""
    dropped: list[tuple[int, int]] = []
    drop = os.posix_fadvise

    def record(file: int, start: int, length: int, advice: int) -> None:
        dropped.append((start, length))
        drop(file, start, length, advice)

    left = iter(huge)
    path, content = tmp_path / "f", np.random.default_rng(0).bytes((3 << 20) + 5)
    path.write_bytes(content)
    monkeypatch.setattr(memory, "_PIECE", 1 << 20)
    monkeypatch.setattr(memory, "_huge_bytes", lambda _: next(left))
    monkeypatch.setattr(os, "posix_fadvise", record)
    assert map_file(path).tobytes() == content
    assert dropped == [(n << 20, min(1 << 20, len(content) - (n << 20))) for n in pieces]


def test_huge_pages_of_a_mapping_are_read_from_the_system(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    mapped = map_file(path)
    assert memory._huge_bytes(mapped) == 0
    maps = "{:x}-{:x} r--s 0 08:01 5 /f\nSize: 9 kB\nFilePmdMapped: {} kB\nVmFlags: rd\n"
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "".join(maps.format(a, a + 4096, n) for a, n in ((4096, 1), (address(mapped), 2048), (1 << 40, 3)))
    )
    assert memory._huge_bytes(mapped, smaps) == 2 << 20
    assert memory._huge_bytes(np.zeros(1, np.uint8), smaps) == 0
    assert memory._huge_bytes(mapped, tmp_path / "missing") == 0


def test_available_memory() -> None:
    assert available_bytes("MemTotal: 9 kB\nMemAvailable:  2 kB\n") <= 2048
    assert available_bytes() > 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), ("5", 5), ("2k", 2000), ("2KiB", 2048), ("1.5 GB", 1_500_000_000), ("3mib", 3 << 20), ("1Ti", 1 << 40)],
)
def test_sizes(value: int | str, expected: int) -> None:
    assert parse_bytes(value, "x") == expected


@pytest.mark.parametrize("value", [0, -5, "", "x", "5 lb", "1e9", True, "-3", "0", 1.5])
def test_sizes_that_are_none(value: Any) -> None:
    with pytest.raises(EngineError, match="kv_cache_memory="):
        parse_bytes(value, "kv_cache_memory")


def test_options_are_resolved_against_the_artifact() -> None:
    resolved = EngineOptions().scheduler(LIMITS)
    assert (resolved.max_seqs, resolved.max_tokens) == (8, 16)
    assert EngineOptions(max_num_batched_tokens=4).scheduler(LIMITS).max_seqs == 4
    assert EngineOptions(max_num_seqs=3).scheduler(LIMITS).max_seqs == 3
    assert EngineOptions(max_model_len=50).model_len(LIMITS) == 50
    assert EngineOptions(kv_cache_memory="1k").kv_bytes() == 1000
    for options, name in (
        (EngineOptions(max_num_seqs=9), "max_num_seqs=9"),
        (EngineOptions(max_num_batched_tokens=0), "max_num_batched_tokens=0"),
        (EngineOptions(max_num_seqs=8, max_num_batched_tokens=4), "4 tokens cannot advance 8"),
    ):
        with pytest.raises(EngineError, match=name):
            options.scheduler(LIMITS)
    with pytest.raises(EngineError, match="max_model_len=101"):
        EngineOptions(max_model_len=101).model_len(LIMITS)


def test_the_largest_cache_is_read_from_the_system(tmp_path: Path) -> None:
    for index, size in enumerate(("32K\n", "1024K\n", "36M\n", "strange\n")):
        group(tmp_path, f"index{index}", size=size)
    assert last_level_cache_bytes(tmp_path) == 36 << 20
    assert last_level_cache_bytes(tmp_path / "nothing") == 32 << 20
