"""Building many modules in parallel worker processes.

A worker builds one module after another. One that dies, ended for want of memory perhaps, is replaced; what it was
building is built again when the others are done, so that it has the machine for itself. A module that costs a process
its life twice is an error that names it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from inferir.codegen.backend import BuildJob, Progress
from inferir.codegen.tvm.build.build_worker import Worker, WorkerDiedError
from inferir.ir.errors import CodegenError
from inferir.ir.system.error_report import describe

_TRIES = 2
_MOST_DEATHS = 2
"""Workers that may die in a thread before it ends: where none can live, not every module is tried."""


def build_many(jobs: Sequence[BuildJob], workers: int = 0, progress: Progress | None = None) -> list[bytes]:
    """Build all jobs and return their shared objects in order.

    `workers` processes at most (0: one per CPU this process may use). Raises the first `CodegenError`, which names the
    job; the other jobs are given up then. Interrupted, it ends all processes at once.
    """
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    return _Builds(jobs, progress).run(count)


class _Builds:
    """One call of `build_many`."""

    def __init__(self, jobs: Sequence[BuildJob], progress: Progress | None) -> None:
        self.jobs = jobs
        self.progress = progress
        self.results: list[bytes | None] = [None] * len(jobs)
        self.errors: list[CodegenError] = []
        self.tries = [0] * len(jobs)
        self.waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.started: list[Worker] = []

    def run(self, count: int) -> list[bytes]:
        for index in sorted(range(len(self.jobs)), key=lambda i: -len(self.jobs[i].source)):
            self.waiting.put(index)
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
            for index in [i for i, result in enumerate(self.results) if result is None]:
                if not self.errors:
                    self._build_alone(index)
        except BaseException:
            self.errors.append(CodegenError("building kernels was interrupted"))
            for worker in self.started:
                worker.kill()
            raise
        if self.errors:
            raise self.errors[0]
        return [r for r in self.results if r is not None]

    def _serve(self) -> None:
        """Build what waits; what a worker died of is left for later."""
        for _ in range(_MOST_DEATHS):
            if self.errors:
                return
            try:
                with self._worker() as worker:
                    while not self.errors:
                        try:
                            index = self.waiting.get_nowait()
                        except queue.Empty:
                            return
                        self._build(worker, index)
            except WorkerDiedError:
                continue
            except CodegenError as error:
                self.errors.append(error)
            except Exception as error:
                self.errors.append(CodegenError(f"building kernels failed: {describe(error)[0]}"))
            return

    def _build_alone(self, index: int) -> None:
        while True:
            try:
                with self._worker() as worker:
                    self._build(worker, index)
                return
            except WorkerDiedError as error:
                if self.tries[index] >= _TRIES:
                    raise CodegenError(
                        f"{self.jobs[index].name}: the process that builds it {error}, twice, the last time with no "
                        "other beside it; the machine may be short of memory"
                    ) from None
            except OSError as error:
                raise CodegenError(f"building kernels failed: {describe(error)[0]}") from None

    def _build(self, worker: Worker, index: int) -> None:
        self.tries[index] += 1
        job = self.jobs[index]
        self.results[index] = worker.build(job.name, job.source, job.target)
        with self.lock:
            if self.progress is not None:
                self.progress(sum(r is not None for r in self.results), len(self.jobs))

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        with Worker() as worker:
            self.started.append(worker)
            if self.errors:
                worker.kill()  # interrupted while it was started
            yield worker
