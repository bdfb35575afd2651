"""The name of an artifact shows the old or the new one, whatever fails, is killed, or happens at the same time."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferir.compile import artifact_folder as module
from inferir.compile.artifact_folder import artifact_folder, check_place
from inferir.ir.errors import ArtifactError

STEPS = ("mkdir", "open", "rename", "unlink", "rmdir", "fsync")  # of `os`
EXCHANGES = ("exchange", "rename_new")


def write(path: Path, text: str) -> None:
    """Replace the artifact at `path` as a compile does."""
    with artifact_folder(path) as folder:
        (folder / "manifest.json").write_text(text)
        (folder / "kernels").mkdir()
        (folder / "kernels" / "t1.so").write_text(text)


def text(path: Path) -> str | None:
    """Which artifact is at `path`, all of it; None if there is none."""
    if not os.path.lexists(path):
        return None
    content = {(path / name).read_text() for name in ("manifest.json", "kernels/t1.so")}
    (only,) = content
    return only


def unsupported(*_: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def forbidden(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture(params=["exchange", "two renames", "filtered"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """File systems that can exchange names, others, and containers that do not let anybody."""
    if request.param != "exchange":
        for name in EXCHANGES:
            monkeypatch.setattr(module, name, unsupported if request.param == "two renames" else forbidden)
    return str(request.param)


def on_each_step(act: Callable[[str, int], None], patch: pytest.MonkeyPatch) -> None:
    """Call `act(name, number)` before every step that changes something on the disk."""
    numbers = itertools.count()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            act(name, next(numbers))
            return real(*arguments, **options)

        return call

    for name in STEPS:
        patch.setattr(os, name, watched(name, getattr(os, name)))
    for name in EXCHANGES:
        patch.setattr(module, name, watched(name, getattr(module, name)))


# Replacing


@pytest.mark.usefixtures("way")
def test_an_artifact_is_made_and_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "art"
    for value in ("first", "second", "third"):
        write(path, value)
        assert text(path) == value
        assert os.listdir(path.parent) == ["art"]


@pytest.mark.usefixtures("way")
def test_whoever_has_the_old_one_open_keeps_it(tmp_path: Path) -> None:
    write(tmp_path / "art", "old")
    with open(tmp_path / "art" / "kernels" / "t1.so") as file:
        write(tmp_path / "art", "new")
        assert file.read() == "old"


@pytest.mark.usefixtures("way")
def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "art").mkdir()
    write(tmp_path / "art", "new")
    assert text(tmp_path / "art") == "new"


@pytest.mark.usefixtures("way")
def test_a_failure_of_the_block_leaves_the_old_one(tmp_path: Path) -> None:
    write(tmp_path / "art", "old")
    with pytest.raises(RuntimeError), artifact_folder(tmp_path / "art") as folder:  # noqa: PT012
        (folder / "manifest.json").write_text("half")
        raise RuntimeError
    assert text(tmp_path / "art") == "old"
    assert os.listdir(tmp_path) == ["art"]


@pytest.mark.usefixtures("way")
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "current"
    link.symlink_to("real/art")
    for value in ("first", "second"):
        write(link, value)
        assert os.readlink(link) == "real/art"
        assert text(tmp_path / "real" / "art") == value
    assert os.listdir(tmp_path / "real") == ["art"]


@pytest.mark.usefixtures("way")
def test_odd_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name in ("n" * 255, "a b\n", "-o", "\udcff", "art/", "./x/../art", ".art", "ü" * 100):
        write(Path(name), "first")
        write(Path(name), "second")
        assert text(Path(name)) == "second"
    with pytest.raises(ArtifactError, match="File name too long"):
        write(Path("n" * 256), "x")


def test_places_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    (tmp_path / "to-other").symlink_to("other")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for name, reason in (
        ("other", "is not an artifact"),
        ("to-other", "is not an artifact"),
        ("file", "is not an artifact"),
        ("file/art", "/file is not a folder"),
        ("file/deep/art", "/file is not a folder"),
        ("/", "is not an artifact"),
        ("link", "leads nowhere"),
        ("/proc", "is not an artifact"),
    ):
        with pytest.raises(ArtifactError, match=reason):
            write(Path(name), "x")
    monkeypatch.chdir(tmp_path / "here")
    for name in (".", "", "../here"):
        with pytest.raises(ArtifactError, match="is the current folder"):
            check_place(Path(name))
    assert sorted(os.listdir(tmp_path)) == ["file", "here", "link", "other", "to-other"]
    assert os.listdir(other) == ["precious"]


def test_a_place_in_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is compiled for it."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    with pytest.raises(ArtifactError, match=f"deep/art: cannot be written: {tmp_path} cannot be written to"):
        check_place(tmp_path / "deep" / "art")


def test_a_mounted_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "art"
    place.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == place)
    with pytest.raises(ArtifactError, match=r"where a file system is mounted.*name a folder in it"):
        check_place(place)


@pytest.mark.usefixtures("way")
def test_what_is_put_at_the_place_meanwhile_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "art"
    with pytest.raises(ArtifactError, match="exists and is not an artifact"), artifact_folder(path) as folder:  # noqa: PT012
        (folder / "manifest.json").write_text("new")
        path.mkdir()
        (path / "precious").touch()
    assert os.listdir(path) == ["precious"]
    assert os.listdir(tmp_path) == ["art"]


def test_what_takes_the_place_at_the_last_moment_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, exchange, calls = tmp_path / "art", module.exchange, []
    write(path, "old")

    def late(*arguments: Any) -> None:
        if not calls:
            path.rename(tmp_path / "moved")
            path.mkdir()
            (path / "precious").touch()
        calls.append(arguments)
        exchange(*arguments)

    monkeypatch.setattr(module, "exchange", late)
    with pytest.raises(ArtifactError, match="exists and is not an artifact"):
        write(path, "new")
    assert os.listdir(path) == ["precious"]
    assert sorted(os.listdir(tmp_path)) == ["art", "moved"]


# Errors of the disk


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EXDEV, errno.EACCES])
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.usefixtures("way")
def test_an_error_at_any_step_leaves_the_old_or_the_new(
    code: int, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = tmp_path / "art", "old" if existing else None
    for at in itertools.count():
        path = tmp_path / str(at) / "art"
        path.parent.mkdir()
        if existing:
            write(path, "old")
        met, failed = [], None

        def fail(name: str, number: int, at: int = at, met: list[str] = met) -> None:
            if number == at:
                met.append(name)
                raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            on_each_step(fail, patch)
            try:
                write(path, "new")
            except ArtifactError as error:
                failed = str(error)
        if not met:
            break
        assert text(path) == (old if failed else "new"), met
        if failed:
            assert failed.startswith(f"{path}: cannot be written: "), met
        write(path, "newer")  # nothing stands in its way
        assert text(path) == "newer"
    assert at > 15


def test_an_old_artifact_that_cannot_be_put_back_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "art"
    write(path, "old")
    rename = os.rename

    def once(source: str, target: str, **folders: Any) -> None:
        if (source, target) != ("art", "old") and source not in ("lock.new",):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target, **folders)

    with monkeypatch.context() as patch:
        for name in EXCHANGES:
            patch.setattr(module, name, unsupported)
        patch.setattr(os, "rename", once)
        with pytest.raises(ArtifactError, match=r"the old artifact is in .*/\.inferir-artifact-\w+/old"):
            write(path, "new")
    assert text(path) is None
    write(tmp_path / "another", "another")  # the next compile puts it back
    assert text(path) == "old"
    assert sorted(os.listdir(tmp_path)) == ["another", "art"]


# Killed


def _killed_at(path: Path, at: int, fallback: bool) -> None:
    """In a child: replace the artifact, and die at step `at`."""

    def die(_: str, number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    patch = pytest.MonkeyPatch()
    if fallback:
        for name in EXCHANGES:
            patch.setattr(module, name, unsupported)
    on_each_step(die, patch)
    write(path, "new")
    os._exit(0)


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("fallback", [False, True])
def test_killed_at_any_step(existing: bool, fallback: bool, tmp_path: Path) -> None:
    """The old or the new one is there, and the next compile removes what is left, whatever its pid."""
    path = tmp_path / "art"
    seen = set()
    for at in itertools.count():
        if existing:
            write(path, "old")
        pid = os.fork()
        if pid == 0:
            try:
                _killed_at(path, at, fallback)
            finally:
                os._exit(9)
        _, status = os.waitpid(pid, 0)
        found = text(path)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            assert found == "new"
            break
        seen.add(found)
        if fallback and existing and found is None:
            write(tmp_path / "another", "x")
            found = text(path)
            subprocess.run(["rm", "-r", str(tmp_path / "another")], check=True)
        assert found in (("old", "new") if existing else (None, "new")), at
        write(path, "newer")
        assert text(path) == "newer"
        # A folder that was made a moment ago, and is still empty, does not tell whose it is.
        left = [p for p in tmp_path.iterdir() if p != path]
        assert all(p.is_dir() and {q.name for q in p.iterdir()} <= {"lock.new"} for p in left), at
        for empty in left:
            subprocess.run(["rm", "-r", str(empty)], check=True)
        subprocess.run(["rm", "-r", str(path)], check=True)
    assert seen >= ({"old", "new"} if existing else {None, "new"})
    assert (None in seen) == (fallback or not existing)


# Several at a time


def _write_many(path: Path, worker: int, rounds: int, fallback: bool, failures: Any) -> None:
    if fallback:
        for name in EXCHANGES:
            setattr(module, name, unsupported)
    for _ in range(rounds):
        try:
            write(path, f"worker {worker}")
        except Exception as error:
            failures.put(repr(error))


@pytest.mark.parametrize("fallback", [False, True])
def test_processes_that_write_to_one_place_all_succeed(fallback: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    path = tmp_path / "art"
    processes = [context.Process(target=_write_many, args=(path, i, 25, fallback, failures)) for i in range(3)]
    for process in processes:
        process.start()
    seen = set()
    while any(p.is_alive() for p in processes):
        if not fallback and path.exists():
            with open(path / "manifest.json") as file:  # a reader that looks while they do it
                seen.add(file.read())
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * 3
    assert failures.empty(), failures.get()
    assert text(path) in {f"worker {i}" for i in range(3)}
    assert seen <= {f"worker {i}" for i in range(3)}
    assert os.listdir(tmp_path) == ["art"]


def test_a_pid_is_not_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers that share a folder, every compile is process 1. One was killed, two run at a time."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "art"
    parent = os.open(tmp_path, os.O_RDONLY)
    killed = module.make_held(parent, tmp_path, module._PREFIX)
    (killed.subfolder("new") / "manifest.json").write_text("half")
    killed.abandon()
    os.close(parent)
    with artifact_folder(path) as first:
        (first / "manifest.json").write_text("first")
        write(path, "second")
        assert text(path) == "second"
        (first / "kernels").mkdir()
        (first / "kernels" / "t1.so").write_text("first")
    assert text(path) == "first"
    assert os.listdir(tmp_path) == ["art"]


DELAYED = """
import sys
from pathlib import Path
from inferir.compile import artifact_folder
exchange = artifact_folder.exchange
def wait(*arguments):
    print("there", flush=True)
    sys.stdin.readline()
    exchange(*arguments)
artifact_folder.exchange = wait
with artifact_folder.artifact_folder(Path(sys.argv[1])) as folder:
    (folder / "manifest.json").write_text("delayed")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "t1.so").write_text("delayed")
"""


def test_one_that_is_delayed_at_the_last_step_wins(tmp_path: Path) -> None:
    path = tmp_path / "art"
    write(path, "old")
    command = [sys.executable, "-c", DELAYED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as delayed:
        assert delayed.stdin is not None
        assert delayed.stdout is not None
        assert delayed.stdout.readline() == "there\n"
        write(path, "other")
        assert text(path) == "other"
        delayed.stdin.write("go\n")
        delayed.stdin.flush()
        assert delayed.wait(60) == 0
    assert text(path) == "delayed"
    assert os.listdir(tmp_path) == ["art"]


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_an_artifact_has_the_mode_that_the_user_wants(tmp_path: Path, umask: int) -> None:
    write(tmp_path / "art", "x")
    assert stat.S_IMODE((tmp_path / "art").stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((tmp_path / "art" / "manifest.json").stat().st_mode) == 0o666 & ~umask
