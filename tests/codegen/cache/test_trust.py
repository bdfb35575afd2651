"""The compile cache in places that others may write to: no link is followed, nothing foreign is used or removed."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferir.codegen.cache import trust as cache_trust
from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache, Entry, Miss
from inferir.codegen.cache.entry_files import FileRecord
from inferir.codegen.cache.entry_index import Index
from inferir.ir.errors import CacheError

KEY, OTHER = CacheKey({"region": "a"}), CacheKey({"region": "b"})
FILES = {"module.so": b"\x7fELF" + bytes(200), "source.py": b"source"}
STRANGER = 54321


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with one entry."""
    folder = tmp_path / "cache"
    CompileCache(folder).put("bucket", KEY, FILES)
    return folder


def place(root: Path, key: CacheKey = KEY) -> Path:
    return root / "v2" / "entries" / "bucket" / key.digest


LEVELS: dict[str, Callable[[Path], Path]] = {
    "root": lambda root: root,
    "v2": lambda root: root / "v2",
    "entries": lambda root: root / "v2" / "entries",
    "kind": lambda root: place(root).parent,
    "entry": place,
    "index": lambda root: place(root) / "index.json",
    "file": lambda root: place(root) / "module.so",
}


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Give a file to another user: really where the tests run as root, else in what the system says of it."""

    def away(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
            return
        node, real = os.lstat(path).st_ino, {name: getattr(os, name) for name in ("stat", "lstat", "fstat")}

        def faked(name: str) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                found = real[name](*arguments, **options)
                return os.stat_result((*found[:4], STRANGER, *found[5:])) if found.st_ino == node else found

            return call

        for name in real:
            monkeypatch.setattr(os, name, faked(name))

    return away


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, without following links, with content."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() and not p.is_symlink() else None
        for p in sorted(folder.rglob("*"))
    }


def works_without(root: Path, caplog: pytest.LogCaptureFixture, named: Path, reason: str) -> None:
    """A compile finds nothing, goes on, stores nothing at that place, and says why exactly once."""
    before = tree(root)
    cache = CompileCache(root)
    for _ in range(2):
        found = cache.get("bucket", KEY)
        assert isinstance(found, Miss)
        assert found.reason.startswith(f"{named} {reason}")
        cache.require_writable()
        assert cache.put("bucket", KEY, {"module.so": b"built"}).files == {"module.so": b"built"}
    (said,) = warnings(caplog)
    assert said.startswith(f"compile cache: {named} {reason}; it is neither used nor removed")
    assert {name: content for name, content in tree(root).items() if name in before} == before


# Other users


@pytest.mark.parametrize("level", LEVELS)
def test_what_belongs_to_somebody_else_is_not_used(
    level: str, root: Path, give: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    where = LEVELS[level](root)
    give(where)
    works_without(root, caplog, where, f"belongs to user {STRANGER}")


@pytest.mark.parametrize("mode", [0o002, 0o020, 0o022])
@pytest.mark.parametrize("level", LEVELS)
def test_what_others_may_write_to_is_not_used(
    level: str, mode: int, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_trust.grp, "getgrgid", lambda _: SimpleNamespace(gr_name="staff", gr_mem=[]))
    where = LEVELS[level](root)
    where.chmod(where.stat().st_mode | mode)
    works_without(root, caplog, where, "can be written to by other users")


def test_forged_code_in_a_shared_cache_is_not_used(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Library and index fit one another: checksums do not tell."""
    forged = {**FILES, "module.so": b"forged"}
    records = {name: FileRecord.of(content) for name, content in forged.items()}
    (place(root) / "module.so").write_bytes(b"forged")
    (place(root) / "index.json").write_bytes(Index("bucket", KEY.digest, KEY.summary, records).encode())
    found = CompileCache(root).get("bucket", KEY)
    assert isinstance(found, Entry)
    assert found.files["module.so"] == b"forged"  # so far it is ours
    root.chmod(0o777)
    works_without(root, caplog, root, "can be written to by other users")


def test_the_rest_of_a_cache_is_used_beside_an_entry_that_is_not(
    root: Path, give: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    CompileCache(root).put("bucket", OTHER, FILES)
    give(place(root))
    cache = CompileCache(root)
    assert isinstance(cache.get("bucket", KEY), Miss)
    assert isinstance(cache.get("bucket", OTHER), Entry)
    assert [info.digest for info in cache.ls()] == [OTHER.digest]
    assert [info.digest for info in cache.prune(max_bytes=0)] == [OTHER.digest]
    assert place(root).exists()
    assert len(warnings(caplog)) == 1


def test_a_folder_with_the_sticky_bit_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As /tmp is: everybody may add to it, nobody can replace what is ours."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    cache = CompileCache(shared)
    cache.put("bucket", KEY, FILES)
    assert isinstance(cache.get("bucket", KEY), Entry)
    assert warnings(caplog) == []


def test_what_belongs_to_root_is_used(
    root: Path, give: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that an administrator filled and nobody else can write to. Here root is the one who is not us."""
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
        assert isinstance(CompileCache(root, readonly=True).get("bucket", KEY), Entry)
    else:
        real = os.fstat
        monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result((*real(fd)[:4], 0, *real(fd)[5:])))
        assert isinstance(CompileCache(root, readonly=True).get("bucket", KEY), Entry)


@pytest.mark.parametrize(
    ("group", "members", "lists", "used"),
    [
        ("me", [], [], True),
        ("me", ["me"], [], True),
        ("me", ["me", "you"], [], False),
        ("staff", [], [], False),
        ("me", [], ["system.posix_acl_access"], False),
        ("me", [], None, True),
    ],
)
def test_a_group_of_ones_own_is_nobody_else(
    group: str, members: list[str], lists: list[str] | None, used: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many systems give every user a group, and let it write. An access list shows as rights of the group."""

    def attributes(_: object) -> list[str]:
        if lists is None:
            raise OSError(95, "Operation not supported")
        return lists

    user = 12345
    real = os.fstat
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result((*real(fd)[:4], user, *real(fd)[5:])))
    monkeypatch.setattr(cache_trust.pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(cache_trust.grp, "getgrgid", lambda _: SimpleNamespace(gr_name=group, gr_mem=members))
    monkeypatch.setattr(os, "listxattr", attributes)
    place(root).chmod(0o775)
    assert isinstance(CompileCache(root, readonly=True).get("bucket", KEY), Entry) is used


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_trusted_later_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "cache"
    CompileCache(root).put("bucket", KEY, FILES)
    assert isinstance(CompileCache(root).get("bucket", KEY), Entry)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for path in root.rglob("*"):
        if path.name != "incoming":
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644) & ~umask


# Links


@pytest.mark.parametrize("level", [*list(LEVELS)[1:]])
def test_a_link_is_not_followed(level: str, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not even one that leads to a perfect copy of what was there."""
    where, outside = LEVELS[level](root), tmp_path / "outside"
    where.rename(outside)
    where.symlink_to(outside)
    before = tree(outside) if outside.is_dir() else outside.read_bytes()
    works_without(root, caplog, where, "is a link")
    assert (tree(outside) if outside.is_dir() else outside.read_bytes()) == before


@pytest.mark.parametrize("target", ["folder", "file", "nothing"])
def test_incoming_as_a_link_is_not_emptied(
    target: str, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hits are hits; what cannot be stored is not stored; what is behind the link stays."""
    outside = tmp_path / "outside"
    if target == "folder":
        (outside / "deep" / "er").mkdir(parents=True)
        (outside / "deep" / "file").write_text("precious")
        (outside / "entry-0123456789ab").mkdir()
    elif target == "file":
        outside.write_text("precious")
    incoming = root / "v2" / "incoming"
    incoming.rmdir()
    incoming.symlink_to(outside)
    before = tree(tmp_path)
    cache = CompileCache(root)
    assert isinstance(cache.get("bucket", KEY), Entry)
    cache.require_writable()
    assert cache.put("bucket", OTHER, FILES).files == FILES
    assert [info.digest for info in cache.ls()] == [KEY.digest]
    assert cache.prune(max_bytes=0) == []
    assert [(d.file, d.reason, d.refused) for d in CompileCache(root).verify()] == [(incoming, "is a link", True)]
    assert tree(tmp_path) == before
    assert len(warnings(caplog)) == 1
    assert f"{incoming} is a link" in caplog.text


def test_the_root_may_be_a_link_of_ones_own(
    root: Path, tmp_path: Path, give: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    cache = CompileCache(link)
    assert isinstance(cache.get("bucket", KEY), Entry)
    cache.put("bucket", OTHER, FILES)
    assert place(root, OTHER).exists()
    give(link)
    assert isinstance(CompileCache(link).get("bucket", KEY), Miss)
    assert f"{link} is a link that belongs to user {STRANGER}" in caplog.text


@pytest.mark.parametrize("name", ["index.json", "module.so"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "device"])
def test_what_is_no_file_is_not_opened(name: str, kind: str, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading a FIFO would wait for ever."""
    file = place(root) / name
    file.unlink()
    match kind:
        case "fifo":
            os.mkfifo(file)
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                here = os.open(file.parent, os.O_RDONLY)
                sock.bind(f"/proc/self/fd/{here}/{name}")
                os.close(here)
        case "folder":
            (file / "deep").mkdir(parents=True)
        case "device":
            if os.geteuid() == 0:
                os.mknod(file, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
            else:
                os.mkfifo(file)
    works_without(root, caplog, file, "is not a file")


def test_hard_links_to_files_of_ones_own_are_files(root: Path, tmp_path: Path) -> None:
    """As a copy made with `cp -l` has them. Removing one leaves the other."""
    os.link(place(root) / "module.so", tmp_path / "second name")
    cache = CompileCache(root)
    assert isinstance(cache.get("bucket", KEY), Entry)
    assert len(cache.prune(max_bytes=0)) == 1
    assert (tmp_path / "second name").read_bytes() == FILES["module.so"]


def test_a_file_in_the_place_of_a_folder(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    place(root).rename(root / "moved")
    place(root).write_text("a file")
    works_without(root, caplog, place(root), "is not a folder")


def test_what_else_lies_about_is_left_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = root / "v2" / "entries"
    for name in ("lost+found", "Upper", "new\nline", "\udcff", ".hidden"):
        (entries / name).mkdir()
        (entries / "bucket" / name).mkdir()
        (root / "v2" / "incoming" / name).mkdir()
        (entries / f"{name}.txt").touch()
    cache = CompileCache(root)
    before = tree(root)
    assert isinstance(cache.get("bucket", KEY), Entry)
    assert cache.verify() == []
    assert [info.digest for info in cache.ls()] == [KEY.digest]
    assert tree(root) == before
    assert len(cache.prune(max_bytes=0)) == 1
    assert not place(root).exists()
    assert len(tree(root)) == len(before) - 4  # the entry, its index and two files
    assert warnings(caplog) == []


def test_a_damaged_entry_with_something_foreign_in_it_stays(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (place(root) / "module.so").write_bytes(b"damaged")
    (place(root) / "mine").mkdir()
    assert isinstance(CompileCache(root).get("bucket", KEY), Miss)
    (said,) = warnings(caplog)
    assert f"{place(root) / 'module.so'}: has 7 bytes instead of" in said
    assert f"cannot be removed: {place(root) / 'mine'} is not a file" in said
    assert (place(root) / "mine").exists()
    assert CompileCache(root).put("bucket", KEY, FILES).files == FILES


def test_a_cache_that_is_given_away_meanwhile_is_not_used_any_more(root: Path) -> None:
    cache = CompileCache(root)
    assert isinstance(cache.get("bucket", KEY), Entry)
    root.chmod(0o777)
    assert isinstance(cache.get("bucket", KEY), Miss)
    with pytest.raises(CacheError, match="can be written to by other users"):
        cache.ls()
