"""Processes that build modules, kept between compiles: each would import TVM again, which is most of a small build."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from inferir.codegen.tvm.build import parallel_build
from inferir.codegen.tvm.build.build_worker import Worker
from inferir.ir.contract.target import Target

MOST = 2
"""Processes that wait for work at the same time; one holds about 300 MB."""


class KeptWorkers:
    """Worker processes of this one, started by a thread that lives as long as they do."""

    def __init__(self) -> None:
        self._starter = ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._idle: list[tuple[dict[str, str], Worker]] = []

    def take(self, environment: dict[str, str]) -> Worker:
        """A worker that was started in this environment, which is that of now."""
        with self._lock:
            found = next((entry for entry in self._idle if entry[0] == environment), None)
            if found is None:
                return self._starter.submit(Worker().__enter__).result()
            self._idle.remove(found)
            return found[1]

    def give(self, environment: dict[str, str], worker: Worker) -> None:
        """Keep a worker that has answered all that it was asked."""
        with self._lock:
            self._idle.append((environment, worker))
            if len(self._idle) > MOST:
                self._idle.pop(0)[1].__exit__(None, None, None)

    def close(self) -> None:
        for _, worker in self._idle:
            worker.__exit__(None, None, None)
        self._starter.shutdown()


class KeptWorker:
    """What `Worker` is to its user; afterwards its process is there for the next one."""

    def __init__(self, workers: KeptWorkers) -> None:
        self._workers = workers
        self._environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self._killed = self._left = False

    def __enter__(self) -> KeptWorker:
        self._worker = self._workers.take(self._environment)
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = True
        if self._killed or exception[0] is not None:
            self._worker.__exit__(*exception)
        else:
            self._workers.give(self._environment, self._worker)

    def build(self, name: str, source: str, target: Target) -> bytes:
        return self._worker.build(name, source, target)

    def kill(self) -> None:
        """End the process, unless it works for somebody else by now."""
        if not self._left:
            self._killed = True
            self._worker.kill()


@pytest.fixture(scope="session", autouse=True)
def kept_workers() -> Iterator[KeptWorkers]:
    """Let every compile in this process build in processes that are kept, unless `real_workers` is asked for."""
    workers = KeptWorkers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_build, "Worker", lambda: KeptWorker(workers))
        yield workers
    workers.close()


@pytest.fixture
def real_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compiles start and end their own processes, as the product does."""
    monkeypatch.setattr(parallel_build, "Worker", Worker)
