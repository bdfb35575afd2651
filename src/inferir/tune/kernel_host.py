"""Running the kernels of one matrix product on this machine: real worker threads, weights that no cache holds."""

from __future__ import annotations

import math
import statistics
import time
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.codegen.tunables import Product, Race
from inferir.ir.contract import abi
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.errors import InferirError
from inferir.ir.graph.graph import Graph, Value
from inferir.ir.ops.kernel import anchor_of
from inferir.runtime.executor.cpu.private_library import load_library
from inferir.runtime.executor.cpu.worker_threads import WorkerPool, function
from inferir.runtime.machine import available_bytes, last_level_cache_bytes
from inferir.runtime.memory import Bytes, address, align, allocate

SAMPLE_SECONDS = 0.006  # a measurement takes about this long, or one run of the kernel
MOST_ROWS = 512  # rows that are measured of buckets with more: the panels of more rows are the same again
_ONES = 0x3F803F80  # two bf16, or a float32 next to it, equal to one: no denormals, no overflow


class Weights:
    """Memory of `nbytes` that products take their weights from, in turn, so that they find them in no cache."""

    def __init__(self, nbytes: int) -> None:
        if nbytes > available_bytes():
            raise InferirError(f"tuning needs {nbytes:,} bytes of memory for weights, {available_bytes():,} are free")
        self.memory = _filled(nbytes, "weights to measure with")

    @staticmethod
    def size(largest: int) -> int:
        """Bytes for weights of at most `largest` bytes each: twice the last-level cache, and at least one of them."""
        return max(2 * last_level_cache_bytes(), align(largest))


class KernelHost:
    """Measures the kernels of a race; `with` stops its threads at the end."""

    def __init__(self, race: Race, library: bytes, weights: Weights, threads: int) -> None:
        self._library = load_library(library, "tune")
        self._words = race.row_words
        self._rows = row_counts(race.product)
        self._pool = WorkerPool(self._library, threads=threads, scratch_bytes=race.scratch_bytes)
        self._step = function(self._library, "inferir_step")
        self._counts = allocate(abi.COUNT_WORDS * 4, "counts").view(np.int32)
        self._tables, self._memory = _tables(race, weights, self._rows[-1])
        self._copies = len(self._tables[0]) // self._words
        self._next = 0
        self._runs = {rows: self._runs_for(rows) for rows in self._rows}

    def __enter__(self) -> KernelHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()

    def measure(self, kernel: int) -> float:
        """Seconds per row: the geometric mean over row counts of the product's bucket, so that each counts alike."""
        return statistics.geometric_mean(self._time(kernel, rows, self._runs[rows]) / rows for rows in self._rows)

    def _runs_for(self, rows: int) -> int:
        """How many runs of the default make a measurement of the usual length."""
        self._time(0, rows, 1)
        return max(1, min(self._copies, round(SAMPLE_SECONDS / self._time(0, rows, 1))))

    def _time(self, kernel: int, rows: int, runs: int) -> float:
        """Seconds per run, of `runs` runs on the weights that were not used for the longest time."""
        if self._next + runs > self._copies:
            self._next = 0
        at = address(self._tables[kernel]) + self._next * self._words * 8
        self._next += runs
        counts = StepCounts(tokens=rows, seqs=rows, rows=rows, items=rows)
        self._counts[: len(counts)] = counts
        start = time.perf_counter()
        self._step(at, runs, self._words, self._pool.control, address(self._counts))
        return (time.perf_counter() - start) / runs


def row_counts(product: Product) -> list[int]:
    """Row counts to measure: the ends of the bucket and their geometric mean."""
    most = max(product.lo, min(product.most, MOST_ROWS))
    return sorted({product.lo, math.isqrt(product.lo * most), most})


def weight_bytes(race: Race) -> int:
    return _weight(race).type.nbytes({})


def _weight(race: Race) -> Value:
    """The packed weight of the product, an input of the region's body."""
    product = anchor_of(race.region)
    assert product is not None
    return product.operands[1]


def _tables(race: Race, weights: Weights, rows: int) -> tuple[list[npt.NDArray[np.int64]], list[Bytes]]:
    """A table of operations per kernel, a row per copy of the weights, and the memory that the rows point to."""
    body: Graph = race.region.attrs["body"]
    sizes = {"T": rows, "R": rows}
    values = [*body.inputs, *body.outputs]
    memory = [_filled(v.type.nbytes(sizes), "operands", _ONES if v.type.dtype.is_float else 0) for v in values]
    stride = align(weight_bytes(race))
    copies = len(weights.memory) // stride
    fixed = np.zeros((copies, race.row_words), np.int64)
    args: list[KernelArg] = [*map(Operand, range(len(body.inputs))), *map(Result, range(len(body.outputs)))]
    places: dict[KernelArg, Any] = {arg: address(array) for arg, array in zip(args, memory, strict=True)}
    copy = address(weights.memory) + stride * np.arange(copies)
    places[Operand(body.inputs.index(_weight(race)))] = copy
    for column, arg in enumerate(race.args):
        fixed[:, 1 + column] = places[arg]
    tables = []
    for kernel in range(len(race.choices)):
        table = allocate(fixed.nbytes, "an operation table").view(np.int64)
        table[:] = fixed.reshape(-1)
        table[:: race.row_words] = kernel
        tables.append(table)
    return tables, [*memory, weights.memory]


def _filled(nbytes: int, what: str, word: int = _ONES) -> Bytes:
    """Memory full of `word`: memory of its own, not the one page of zeros that untouched memory is read from."""
    memory = allocate(align(nbytes), what)
    memory.view(np.int32)[:] = word
    return memory
