"""Processes that build modules: one that dies is replaced, and all end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from serving import alive

from inferir.codegen.backend import BuildJob
from inferir.codegen.tvm.build import build_worker
from inferir.codegen.tvm.build import parallel_build as build_pool
from inferir.codegen.tvm.build.build_worker import Worker, WorkerDiedError
from inferir.codegen.tvm.build.parallel_build import build_many
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError

pytestmark = pytest.mark.usefixtures("real_workers")

MODULE = """
@I.ir_module
class Mod:
    @T.prim_func
    def run(x: T.handle("int32"), n: T.int32) -> T.int32:
        T.func_attr({"global_symbol": "inferir_run", "calling_conv": 2})
        X = T.decl_buffer((1,), "int32", data=x)
        X[0] = AMOUNT
        return T.int32(0)
"""


class FakeWorker:
    """A worker that dies of what `deadly` says: name of a job, and how often it does."""

    deadly: dict[str, int]
    started: int

    def __enter__(self) -> FakeWorker:
        type(self).started += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def build(self, name: str, source: str, target: Target) -> bytes:
        if self.deadly.get(name, 0):
            self.deadly[name] -= 1
            raise WorkerDiedError("was ended by SIGKILL")
        return source.encode()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    class Fake(FakeWorker):
        deadly: dict[str, int] = {}  # noqa: RUF012
        started = 0

    monkeypatch.setattr(build_pool, "Worker", Fake)
    return Fake


def jobs(count: int) -> list[BuildJob]:
    return [BuildJob(f"t{i}", f"source {i}", Target.named("x86-64-v3")) for i in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_job_whose_process_died_is_done_again(workers: int, fake: type[FakeWorker]) -> None:
    fake.deadly = {"t1": 1, "t3": 1}
    seen: list[tuple[int, int]] = []
    built = build_many(jobs(5), workers, lambda done, total: seen.append((done, total)))
    assert built == [f"source {i}".encode() for i in range(5)]
    assert sorted(seen) == [(i, 5) for i in range(1, 6)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_kills_its_process_twice_is_named(workers: int, fake: type[FakeWorker]) -> None:
    fake.deadly = {"t1": 2}
    with pytest.raises(CodegenError, match=r"t1: the process that builds it was ended by SIGKILL, twice.*memory"):
        build_many(jobs(3), workers)


def test_where_no_process_lives_few_are_tried(fake: type[FakeWorker]) -> None:
    fake.deadly = {f"t{i}": 1000 for i in range(100)}
    with pytest.raises(CodegenError, match="was ended by SIGKILL, twice"):
        build_many(jobs(100), 2)
    assert fake.started <= 6


def test_a_killed_process_is_replaced(host: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, killed while it works, as the system does when memory runs out."""
    build, victims = Worker.build, []

    def killed(self: Worker, name: str, source: str, target: Target) -> bytes:
        if not victims:
            victims.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGSTOP)  # it must not be faster than the signal
            os.kill(self._process.pid, signal.SIGKILL)
        return build(self, name, source, target)

    monkeypatch.setattr(Worker, "build", killed)
    (module,) = build_many([BuildJob("t1", MODULE.replace("AMOUNT", "1"), host)])
    assert module.startswith(b"\x7fELF")
    assert len(victims) == 1


@pytest.mark.parametrize("said", [b"", b'{"by', b'{"bytes": 10}\n', b'{"bytes": 10}\nhalf'])
def test_an_answer_that_breaks_off_is_no_answer(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a library must never count as one."""
    program = f"import os, signal; os.write(1, {said!r}); os.kill(os.getpid(), signal.SIGKILL)"
    popen = subprocess.Popen

    def start(_: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", program], **options)

    monkeypatch.setattr(build_worker.subprocess, "Popen", start)
    with pytest.raises(WorkerDiedError, match="was ended by SIGKILL"), Worker() as worker:
        worker.build("t1", "source", Target.named("x86-64-v3"))


def test_a_full_disk_is_named(host: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    from inferir.codegen.tvm.build import build_module as build

    monkeypatch.setattr(build, "_link", full)
    with pytest.raises(CodegenError, match=r"no temporary files can be written in .*: No space left on device"):
        build.build_module(MODULE.replace("AMOUNT", "1"), host)


def test_modules_in_the_current_folder_are_not_imported(
    host: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may belong to anybody."""
    for name in ("json", "tvm", "inferir", "msgspec"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    (module,) = build_many([BuildJob("t1", MODULE.replace("AMOUNT", "1"), host)])
    assert module.startswith(b"\x7fELF")
    assert not (tmp_path / "ran").exists()


PARENT = """
import sys
from inferir.codegen.backend import BuildJob
from inferir.codegen.tvm.build.parallel_build import build_many
from inferir.ir.contract.target import Target
jobs = [BuildJob(str(i), sys.argv[1].replace("AMOUNT", str(i)), Target.named(sys.argv[2])) for i in range(10_000)]
build_many(jobs, workers=2, progress=lambda done, total: print(done, flush=True))
"""


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(p) for p in (task / "children").read_text().split()]
    return found


def test_processes_end_with_a_killed_parent(host: Target, tmp_path: Path) -> None:
    """While they are busy: what they would read next does not come into it."""
    command = [sys.executable, "-c", PARENT, MODULE, host.name]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"1\n"
        workers = children(parent.pid)
        assert len(workers) == 2
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # nothing that they could do themselves would end them
        parent.kill()
        parent.wait()
        end = time.monotonic() + 60
        while any(map(alive, workers)) and time.monotonic() < end:
            time.sleep(0.01)
        assert not any(map(alive, workers))
    build_many([BuildJob("t1", MODULE.replace("AMOUNT", "1"), host)])


def test_the_linker_ends_with_a_killed_worker(host: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linker = tmp_path / "ld.lld"
    linker.write_text("#!/bin/sh\nexec sleep 60\n")
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    linkers: list[int] = []

    def kill_while_it_links(worker: Worker) -> None:
        pid = worker._process.pid
        while not linkers and worker._process.poll() is None:
            time.sleep(0.01)
            linkers.extend(children(pid))
        worker.kill()

    with Worker() as worker:
        killing = threading.Thread(target=kill_while_it_links, args=(worker,))
        killing.start()
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            worker.build("t1", MODULE.replace("AMOUNT", "1"), host)
        killing.join()
    end = time.monotonic() + 20
    while alive(linkers[0]) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(linkers[0])
