"""What the machine can do: memory streaming, cache streaming and dot products, measured by generated kernels.

The kernels (`codegen/limit_probes.py`) run on the worker threads and the step driver that models run on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from inferir.codegen.backend import BuildJob
from inferir.codegen.backends import backend_for
from inferir.codegen.limit_probes import DOTS, STREAM, STREAM_OUT, limit_probes_of
from inferir.ir.contract import abi
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.contract.target import Target
from inferir.ir.graph.dtypes import DType
from inferir.runtime.executor.cpu.private_library import load_library
from inferir.runtime.executor.cpu.worker_threads import WorkerPool, function
from inferir.runtime.machine import available_bytes, last_level_cache_bytes
from inferir.runtime.memory import address, allocate

LEAST, MOST = 256 << 20, 1 << 30  # bytes that are streamed: far more than any cache
REPEATS = 200  # times that a task is read to measure the cache
SHARE = 16  # tasks per thread, so that all threads take part
_ONES = 0x3F803F80  # two bf16, or a float32 next to it, equal to one: no denormals, no overflow


@dataclass(frozen=True)
class MachineLimits:
    """Bytes per second from memory and from the cache, and floating-point operations per second."""

    memory: float
    cache: float
    flops: float


class LimitProbe:
    """Measures the limits with `threads` threads, for dot products of `dtype` with the instructions of `target`.

    `library` has timed workers besides (`inferir.ir.contract.abi.CLAIMS`). `nbytes` are streamed (default: eight times
    the last-level cache, 256 MiB to 1 GiB, at most a quarter of the free memory). Raises `TargetError` and
    `CodegenError` where there are no such kernels.
    """

    def __init__(self, threads: int, dtype: DType, target: Target, nbytes: int | None = None) -> None:
        backend = backend_for(target)
        module = limit_probes_of(backend).module(dtype, target)
        (library,) = backend.build([BuildJob("limits", module.source, target)])
        self.library = load_library(library, "profile")
        self._module = module
        self._threads = threads
        usual = min(max(LEAST, min(MOST, 8 * last_level_cache_bytes())), available_bytes() // 4)
        self._tasks = max(1, (usual if nbytes is None else nbytes) // module.task_bytes)
        size = max(self._tasks, SHARE * threads) * module.task_bytes
        self._pool = WorkerPool(self.library, threads=threads, scratch_bytes=module.scratch_bytes)
        self._data = allocate(size, "the streamed data")
        self._data.view(np.int32)[:] = _ONES
        results = max(self._tasks * STREAM_OUT, SHARE * threads * max(STREAM_OUT, module.out_bytes))
        self._out = allocate(results, "results")
        self._table = allocate(module.row_words * 8, "the op table").view(np.int64)
        self._counts = allocate(abi.COUNT_WORDS * 4, "counts").view(np.int32)

    def __enter__(self) -> LimitProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()

    def measure(self, rounds: int = 5) -> MachineLimits:
        """The best of `rounds`; it takes some tenths of a second."""
        shared, task = SHARE * self._threads, self._module.task_bytes
        memory = max(self._tasks * task / self._time(STREAM, self._tasks) for _ in range(rounds))
        cache = max(task * REPEATS * shared / self._time(STREAM, shared, REPEATS) for _ in range(rounds))
        flops = max(self._module.task_flops * shared / self._time(DOTS, shared) for _ in range(rounds))
        return MachineLimits(memory, cache, flops)

    def _time(self, kernel: int, tasks: int, repeats: int = 1) -> float:
        self._table[:3] = (kernel, address(self._data), address(self._out))
        counts = StepCounts(tokens=tasks, seqs=repeats, rows=0, items=0)
        self._counts[: len(counts)] = counts
        step = function(self.library, "inferir_step")
        start = time.perf_counter()
        step(address(self._table), 1, len(self._table), self._pool.control, address(self._counts))
        return time.perf_counter() - start
