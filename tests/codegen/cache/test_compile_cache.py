"""The persistent compile cache: hits, explained misses, damage, competing writers, full and read-only disks."""

import errno
import io
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CacheOptions, CompileCache, Damage, Entry, Miss
from inferir.ir.errors import CacheError

FILES: dict[str, bytes | Path] = {"k.so": b"\x7fELF" + bytes(range(200)), "k.tir": b"source text"}


def _key(**changed: Any) -> CacheKey:
    components = {"region": "rowwise { ... }", "bucket": [1, 8], "options": {"dtype": "f32", "fuse": True}}
    return CacheKey({**components, **changed})


def _hit(cache: CompileCache, key: CacheKey) -> Entry:
    found = cache.get("kernel", key)
    assert isinstance(found, Entry), found
    return found


def _miss(cache: CompileCache, key: CacheKey) -> Miss:
    found = cache.get("kernel", key)
    assert isinstance(found, Miss), found
    return found


def _tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(params=["disk", "memory"])
def cache(request: pytest.FixtureRequest, root: Path) -> CompileCache:
    return CompileCache(root if request.param == "disk" else None)


# Hits and misses, on disk and in memory


def test_what_was_put_is_found(cache: CompileCache) -> None:
    assert _miss(cache, _key()).reason == "no kernel entry is stored"
    put = cache.put("kernel", _key(), FILES)
    assert _hit(cache, _key()) == put
    assert put.files == FILES
    assert (cache.hits, cache.misses) == (1, 1)


def test_the_first_entry_of_a_key_stays(cache: CompileCache) -> None:
    cache.put("kernel", _key(), {"k.so": b"first"})
    assert cache.put("kernel", _key(), {"k.so": b"second"}).files == {"k.so": b"first"}
    assert _hit(cache, _key()).files == {"k.so": b"first"}


def test_kinds_are_separate(cache: CompileCache) -> None:
    cache.put("kernel", _key(), FILES)
    found = cache.get("library", _key())
    assert isinstance(found, Miss)
    assert found.reason == "no library entry is stored"


def test_a_miss_names_what_differs_from_the_nearest_entry(cache: CompileCache) -> None:
    cache.put("kernel", _key(region="another", bucket=[9, 16]), FILES)
    cache.put("kernel", _key(), FILES)
    found = _miss(cache, _key(options={"dtype": "bf16", "fuse": True}))
    assert found.reason == (
        'no kernel entry has this key; the nearest differs in options.dtype (stored "f32", now "bf16")'
    )
    other = cache.get("kernel", _key(bucket=[1, 9]))
    assert isinstance(other, Miss)
    assert other.reason.endswith("differs in bucket (stored [1,8], now [1,9])")


def test_alternating_settings_each_find_their_own_entry(cache: CompileCache) -> None:
    for block in (16, 32, 16, 64, 32):
        found = cache.get("kernel", _key(block=block))
        if isinstance(found, Miss):
            cache.put("kernel", _key(block=block), {"k.so": str(block).encode()})
        else:
            assert found.files == {"k.so": str(block).encode()}
    assert (cache.hits, cache.misses) == (2, 3)


def test_find_by_the_start_of_a_digest(cache: CompileCache) -> None:
    for i in range(20):
        cache.put("kernel", _key(i=i), FILES)
    assert cache.find(_key(i=3).digest[:16]).components["i"] == 3
    with pytest.raises(CacheError, match="20 entries start with ''"):
        cache.find("")
    with pytest.raises(CacheError, match="no entry starts with 'xyz'"):
        cache.find("xyz")


@pytest.mark.parametrize("name", ["", "index.json", "a/b", "../x", ".hidden", "/abs"])
def test_names_that_could_leave_the_entry_are_refused(cache: CompileCache, name: str) -> None:
    with pytest.raises(CacheError, match="cannot be the name of a stored file"):
        cache.put("kernel", _key(), {name: b""})


def test_kinds_that_could_leave_the_folder_are_refused(cache: CompileCache) -> None:
    with pytest.raises(CacheError, match="no kind of entry"):
        cache.get("../x", _key())


def test_ls_and_prune_by_size_drop_the_least_recently_used(cache: CompileCache) -> None:
    for i in range(4):
        cache.put("kernel", _key(i=i), {"k.so": bytes(100)})
    if cache.root is not None:
        for i in range(4):
            index = cache.root / "v2" / "entries" / "kernel" / _key(i=i).digest / "index.json"
            os.utime(index, (1000 + i, 1000 + i))
        _hit(cache, _key(i=0))
    assert {info.components["i"] for info in cache.ls()} == {0, 1, 2, 3}
    assert all(info.nbytes == 100 and info.files == ("k.so",) for info in cache.ls())
    removed = {info.components["i"] for info in cache.prune(max_bytes=250)}
    assert len(removed) == 2
    assert {info.components["i"] for info in cache.ls()} == {0, 1, 2, 3} - removed
    if cache.root is not None:
        assert removed == {1, 2}
    assert len(cache.prune(max_bytes=0)) == 2
    assert cache.ls() == []


def test_prune_by_age(root: Path) -> None:
    cache = CompileCache(root)
    for i in range(2):
        cache.put("kernel", _key(i=i), FILES)
    os.utime(root / "v2" / "entries" / "kernel" / _key(i=0).digest / "index.json", (1000, 1000))
    assert [info.components["i"] for info in cache.prune(max_age=3600)] == [0]
    _hit(cache, _key(i=1))


# Where the cache is


def test_root_comes_from_options_then_environment(tmp_path: Path) -> None:
    def chosen(environ: dict[str, str], root: Path | None = None) -> Path | None:
        return CompileCache.from_env(CacheOptions(root=root), environ).root

    everything = {"INFERIR_CACHE": "/i", "XDG_CACHE_HOME": "/x", "HOME": "/h"}
    assert chosen(everything, tmp_path) == tmp_path
    assert chosen({**everything, "INFERIR_CACHE": "off"}, tmp_path) == tmp_path
    assert chosen(everything) == Path("/i")
    assert chosen({**everything, "INFERIR_CACHE": ""}) == Path("/x/inferir")
    assert chosen({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/inferir")
    assert chosen({"INFERIR_CACHE": "here", "HOME": "/h"}) == Path.cwd() / "here"


def test_without_any_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert CompileCache.from_env(environ={}).root is None
    assert "INFERIR_CACHE is not set" in caplog.text


@pytest.mark.parametrize(
    ("options", "value"), [(CacheOptions(), "off"), (CacheOptions(), "OFF"), (CacheOptions(enabled=False), "set")]
)
def test_switched_off_it_works_and_leaves_no_file(
    options: CacheOptions, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("INFERIR_CACHE", value)
    cache = CompileCache.from_env(options)
    cache.require_writable()
    cache.put("kernel", _key(), FILES)
    assert _hit(cache, _key()).files == FILES
    assert cache.verify() == []
    assert list(tmp_path.iterdir()) == []


def test_copied_or_moved_folders_still_hit(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CompileCache(root).put("kernel", _key(), FILES)
    copied = tmp_path / "b" / "elsewhere"
    shutil.copytree(root, copied, copy_function=shutil.copyfile)
    moved = tmp_path / "c"
    root.rename(moved)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("USER", "somebody")
    for place in (copied, moved):
        for path in place.rglob("*"):
            os.utime(path, (1, 1))
        assert _hit(CompileCache(place, readonly=True), _key()).files == FILES


def test_looking_creates_no_folder(root: Path) -> None:
    cache = CompileCache(root)
    _miss(cache, _key())
    assert cache.ls() == []
    assert cache.verify() == []
    assert not root.exists()


# Damage


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


DAMAGES = [_truncate, _empty, _flip, _append, Path.unlink]


def _stored_file(root: Path, name: str) -> Path:
    CompileCache(root).put("kernel", _key(), FILES)
    return root / "v2" / "entries" / "kernel" / _key().digest / name


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
@pytest.mark.parametrize("name", ["k.so", "k.tir", "index.json"])
def test_a_damaged_file_is_named_dropped_and_rebuilt(
    root: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = _stored_file(root, name)
    damage(file)
    cache = CompileCache(root)
    assert str(file) in _miss(cache, _key()).reason
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert str(file) in warnings[0]
    assert "entry dropped" in warnings[0]
    assert _tree(root) == set()
    cache.put("kernel", _key(), FILES)
    assert _hit(CompileCache(root), _key()).files == FILES


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
def test_put_replaces_a_damaged_entry(root: Path, damage: Callable[[Path], None]) -> None:
    damage(_stored_file(root, "k.so"))
    assert CompileCache(root).put("kernel", _key(), {"k.so": b"rebuilt"}).files == {"k.so": b"rebuilt"}
    assert _hit(CompileCache(root), _key()).files == {"k.so": b"rebuilt"}


def test_a_read_only_cache_reports_damage_but_keeps_the_files(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = _stored_file(root, "k.so")
    _flip(file)
    before = _tree(root)
    cache = CompileCache(root, readonly=True)
    assert _miss(cache, _key()).reason == f"{file}: checksum mismatch"
    assert "left in place" in caplog.text
    assert cache.verify() == [Damage(file, "checksum mismatch")]
    assert _tree(root) == before


def test_verify_finds_and_drops_only_what_is_damaged(root: Path) -> None:
    bad = _stored_file(root, "k.tir")
    cache = CompileCache(root)
    cache.put("kernel", _key(other=1), FILES)
    bad.unlink()
    assert cache.verify() == [Damage(bad, "missing")]
    assert cache.verify() == []
    assert [info.digest for info in cache.ls()] == [_key(other=1).digest]


def test_an_unreadable_entry_is_a_miss_and_is_not_dropped(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = _stored_file(root, "k.so")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("inferir.codegen.cache.entry_files._read_at", refuse)
    assert _miss(CompileCache(root), _key()).reason == f"{file.parent}: cannot be read: Permission denied"
    assert str(file.parent) in caplog.text
    assert file.exists()


# Competing and killed writers


def _race(root: Path, worker: int, rounds: int, start: Any, failures: Any) -> None:
    cache = CompileCache(root)
    start.wait()
    for i in range(rounds):
        key = _key(round=i)
        try:
            found = cache.get("kernel", key)
            content = {name: f"{name} {i}".encode() * 500 for name in ("a.so", "b.tir")}
            entry = found if isinstance(found, Entry) else cache.put("kernel", key, content)
            if entry.files != content:
                failures.put(f"worker {worker}: wrong content in round {i}")
        except Exception as error:
            failures.put(f"worker {worker}: {error!r}")


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_compile_the_same_keys_all_succeed(root: Path, damaged: bool) -> None:
    rounds, workers = 12, 4
    if damaged:
        for i in range(rounds):
            CompileCache(root).put("kernel", _key(round=i), {"a.so": b"code"})
        for file in root.rglob("a.so"):
            _flip(file)
    context = multiprocessing.get_context("spawn")
    start, failures = context.Barrier(workers), context.SimpleQueue()
    processes = [
        context.Process(target=_race, args=(root, worker, rounds, start, failures)) for worker in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * workers
    assert failures.empty(), failures.get()
    cache = CompileCache(root)
    for i in range(rounds):
        assert _hit(cache, _key(round=i)).files["a.so"] == f"a.so {i}".encode() * 500
    assert (cache.hits, cache.misses) == (rounds, 0)
    assert {Path(name).name for name in _tree(root)} == {"index.json", "a.so", "b.tir"}
    assert os.listdir(root / "v2" / "incoming") == []


def test_threads_may_share_a_cache(cache: CompileCache) -> None:
    def work(i: int) -> bytes:
        entry = cache.put("kernel", _key(i=i % 5), {"k.so": str(i % 5).encode()})
        assert _hit(cache, _key(i=i % 5)) == entry
        return entry.files["k.so"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [str(i % 5).encode() for i in range(40)]
    assert cache.hits == 40


KILLED_COMPILER = """
import sys
from pathlib import Path
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.cache.cache_key import CacheKey
cache = CompileCache(Path(sys.argv[1]))
print("started", flush=True)
for i in range(100000):
    cache.put("kernel", CacheKey({"i": i}), {name: bytes(200000) for name in ("a.so", "b.so")})
"""


def test_a_killed_compile_leaves_only_whole_entries_and_its_rest_is_removed(root: Path) -> None:
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED_COMPILER, str(root)], stdout=subprocess.PIPE, text=True
        ) as compiler:
            assert compiler.stdout is not None
            assert compiler.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                compiler.wait(0.15)
            compiler.send_signal(signal.SIGKILL)
            compiler.wait()
        cache = CompileCache(root)
        assert cache.verify() == []
        cache.put("kernel", _key(), FILES)
        assert _hit(cache, _key()).files == FILES
        assert os.listdir(root / "v2" / "incoming") == []


# Disks that refuse


def _fail_writes(monkeypatch: pytest.MonkeyPatch, code: int, allowed: int) -> None:
    """Let `allowed` bytes be written to new files, then fail as a disk would."""
    left = allowed

    class Limited(io.FileIO):
        def write(self, data: Any, /) -> int:
            nonlocal left
            left -= len(data)
            if left < 0:
                raise OSError(code, os.strerror(code))
            return super().write(data)

    def limited_open(path: Any, mode: str = "r", **options: Any) -> Any:
        return Limited(path, mode) if "x" in mode else open(path, mode, **options)

    monkeypatch.setattr("inferir.codegen.cache.entry_files.open", limited_open, raising=False)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("allowed", [0, 10, 204, 220])
def test_a_full_disk_is_an_error_that_leaves_nothing(
    root: Path, code: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CompileCache(root)
    with monkeypatch.context() as patch:
        _fail_writes(patch, code, allowed)
        with pytest.raises(CacheError) as caught:
            cache.put("kernel", _key(), FILES)
    name = "k.so" if allowed < 204 else "k.tir" if allowed < 215 else "index.json"
    assert f"compile cache {root}: cannot write {name}: {os.strerror(code)}" in str(caught.value)
    assert "INFERIR_CACHE" in str(caught.value)
    assert _tree(root) == set()
    assert os.listdir(root / "v2" / "incoming") == []
    cache.put("kernel", _key(), FILES)
    assert _hit(cache, _key()).files == FILES


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_really_full_disk(small_disk: Path) -> None:
    cache = CompileCache(small_disk)
    cache.put("kernel", _key(), FILES)
    with pytest.raises(CacheError, match=r"cannot write big\.so: No space left on device"):
        cache.put("kernel", _key(other=1), {"big.so": bytes(1_000_000)})
    assert len(cache.ls()) == 1
    assert os.listdir(small_disk / "v2" / "incoming") == []
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    cache.put("kernel", _key(other=1), {"big.so": bytes(1_000_000)})
    assert len(_hit(cache, _key(other=1)).files["big.so"]) == 1_000_000


def test_a_really_read_only_disk(small_disk: Path) -> None:
    file = _stored_file(small_disk, "k.so")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    cache = CompileCache(small_disk)
    assert _hit(cache, _key()).files == FILES
    with pytest.raises(CacheError, match="Read-only file system"):
        cache.put("kernel", _key(other=1), FILES)
    with pytest.raises(CacheError, match="Read-only file system"):
        cache.require_writable()
    with pytest.raises(CacheError, match="Read-only file system"):
        cache.prune(max_bytes=0)
    assert file.exists()


@pytest.mark.parametrize("refused", ["mkdir", "rename"])
def test_an_unwritable_folder_is_named_and_hits_still_work(
    root: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CompileCache(root).put("kernel", _key(), FILES)
    before = _tree(root)

    def refuse(path: Any, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    cache = CompileCache(root)
    with monkeypatch.context() as patch:
        for name in (refused, "utime"):
            patch.setattr(os, name, refuse)
        assert _hit(cache, _key()).files == FILES
        with pytest.raises(
            CacheError, match=f"compile cache {root}: cannot write .*: Permission denied; free or unlock"
        ):
            cache.put("kernel", _key(other=1), FILES)
    assert _tree(root) == before


def test_a_root_that_is_a_file_is_named(root: Path) -> None:
    root.write_text("not a folder")
    cache = CompileCache(root)
    assert "Not a directory" in _miss(cache, _key()).reason
    with pytest.raises(CacheError, match=f"compile cache {root}: .*Not a directory"):
        cache.put("kernel", _key(), FILES)
    assert root.read_text() == "not a folder"


def test_a_cache_opened_read_only_hits_and_refuses_changes(root: Path) -> None:
    CompileCache(root).put("kernel", _key(), FILES)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    cache = CompileCache(root, readonly=True)
    assert _hit(cache, _key()).files == FILES
    for change in (
        lambda: cache.put("kernel", _key(other=1), FILES),
        lambda: cache.prune(max_bytes=0),
        cache.require_writable,
    ):
        with pytest.raises(CacheError, match=f"compile cache {root}: opened read-only"):
            change()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_require_writable_leaves_nothing(root: Path) -> None:
    CompileCache(root).require_writable()
    assert _tree(root) == set()
    assert os.listdir(root / "v2" / "incoming") == []
