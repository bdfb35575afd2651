"""What the machine can do: memory streaming, cache streaming and dot products, measured by generated kernels.

The kernels do nothing else, so nothing that multiplies or moves data can be faster.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from inferir.codegen.tvm.build.build_module import build_module
from inferir.codegen.tvm.driver.step_driver import bucket_module_source, row_words
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Param, TaskKernel, Writer, entry_head
from inferir.ir.contract import abi
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.contract.target import Target
from inferir.runtime.executor.cpu.worker_threads import WorkerPool, function
from inferir.runtime.memory import address, allocate

TASK = 128 * 1024  # bytes that a streaming task reads; they fit the second-level cache
LARGE = 512 << 20  # bytes: far more than any cache
REPEATS = 200  # times that a task is read to measure the cache
SHARE = 16  # tasks per thread, so that all threads take part
DOTS = 24  # accumulators, as many as the tallest register tile has
DOT_STEPS = 20_000


@dataclass(frozen=True)
class Limits:
    """Bytes per second from memory and from the cache, and floating-point operations per second."""

    memory: float
    cache: float
    flops: float


def _stream() -> TaskKernel:
    """Reads `TASK` bytes n_s times and keeps their sum, in 16 lanes and 4 accumulators."""
    w = Writer()
    params = (Param("x", "int32"), Param("out", "int32"))
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head("stream", params)):
        w.line('X = T.decl_buffer((1,), "int32", data=x)')
        w.line('OUT = T.decl_buffer((1,), "int32", data=out)')
        w.line('a = T.alloc_buffer((4, 16), "int32", annotations={"disable_lower_builtin": True})')
        with w.block("for i in T.unroll(4):"):
            w.line("a[i, T.ramp(0, 1, 16)] = T.broadcast(T.int32(0), 16)")
        words = TASK // 4
        sweep = w.block(f"for k in range({words // 64}):")
        with w.block("for repeat in range(n_s):"), sweep, w.block("for i in T.unroll(4):"):
            at = f"T.cast(task, 'int64') * {words} + T.cast(k * 64 + i * 16, 'int64')"
            w.line(f"a[i, T.ramp(0, 1, 16)] = a[i, T.ramp(0, 1, 16)] + X[T.ramp({at}, T.int64(1), 16)]")
        with w.block("for i in T.unroll(4):"):
            w.line("OUT[T.ramp(task * 64 + i * 16, 1, 16)] = a[i, T.ramp(0, 1, 16)]")
        w.line("return T.int32(0)")
    return TaskKernel("stream", params, w.text(), "n_t")


def _dots(dtype: str) -> TaskKernel:
    """`DOT_STEPS` times `DOTS` vector products on registers."""
    w = Writer()
    kind = "int32" if dtype == "bf16" else "float32"
    params = (Param("x", kind), Param("out", "float32"))
    w.line("@T.prim_func(private=True)")
    with w.block(entry_head("dots", params)):
        w.line(f'X = T.decl_buffer((1,), "{kind}", data=x)')
        w.line('OUT = T.decl_buffer((1,), "float32", data=out)')
        w.line(f'a = T.alloc_buffer(({DOTS}, 16), "float32", annotations={{"disable_lower_builtin": True}})')
        lane = "T.ramp(0, 1, 16)"
        with w.block(f"for i in T.unroll({DOTS}):"):
            w.line(f"a[i, {lane}] = T.broadcast(T.float32(0), 16)")
        w.line(f"v: T.let = X[{lane}]")
        with w.block(f"for k in range({DOT_STEPS}):"), w.block(f"for i in T.unroll({DOTS}):"):
            acc = f"a[i, {lane}]"
            product = call("inf_dot_bf16", 16, acc, "v", "v") if dtype == "bf16" else call("inf_fma", 16, "v", "v", acc)
            w.line(f"{acc} = {product}")
        with w.block(f"for i in T.unroll({DOTS}):"):
            w.line(f"OUT[T.ramp(task * {16 * DOTS} + i * 16, 1, 16)] = a[i, {lane}]")
        w.line("return T.int32(0)")
    return TaskKernel("dots", params, w.text(), "n_t")


class LimitProbe:
    """Measures the limits with `threads` threads; each call of `measure` takes some tenths of a second."""

    def __init__(self, threads: int, dtype: str) -> None:
        kernels = [_stream(), _dots(dtype)]
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            Path(file.name).write_bytes(build_module(bucket_module_source(kernels), Target.host()))
            self._library = ctypes.CDLL(file.name)
        self._threads = threads
        self._pair = 2 if dtype == "bf16" else 1
        self._pool = WorkerPool(self._library, threads=threads, scratch_bytes=64)
        self._data = allocate(LARGE, "the streamed data")
        self._data[::4096] = 1
        self._out = allocate(LARGE // TASK * 256 + SHARE * threads * DOTS * 64, "results")
        self._table = allocate(row_words(kernels) * 8, "the op table").view(np.int64)
        self._counts = allocate(abi.COUNT_WORDS * 4, "counts").view(np.int32)

    def __enter__(self) -> LimitProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()

    def measure(self, rounds: int = 5) -> Limits:
        """The best of `rounds`."""
        tasks = SHARE * self._threads
        memory = max(LARGE / self._time(0, LARGE // TASK) for _ in range(rounds))
        cache = max(TASK * REPEATS * tasks / self._time(0, tasks, REPEATS) for _ in range(rounds))
        work = 2 * 16 * self._pair * DOTS * DOT_STEPS * tasks
        flops = max(work / self._time(1, tasks) for _ in range(rounds))
        return Limits(memory, cache, flops)

    def _time(self, kernel: int, tasks: int, repeats: int = 1) -> float:
        self._table[:3] = (kernel, address(self._data), address(self._out))
        counts = StepCounts(tokens=tasks, seqs=repeats, rows=0, items=0)
        self._counts[: len(counts)] = counts
        step = function(self._library, "inferir_step")
        start = time.perf_counter()
        step(address(self._table), 1, len(self._table), self._pool.control, address(self._counts))
        return time.perf_counter() - start
