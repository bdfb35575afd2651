"""A bucket's step program, ready to run: every argument resolved to an address."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import numpy.typing as npt

from inferir.ir.contract import abi
from inferir.ir.contract.manifest import BucketRecord
from inferir.ir.contract.symbols import StepCounts
from inferir.runtime.executor.base import OperationTimes
from inferir.runtime.executor.cpu.claim_notes import ClaimNotes
from inferir.runtime.executor.cpu.step_memory import StepMemory
from inferir.runtime.executor.cpu.worker_threads import WorkerPool, function
from inferir.runtime.memory import address, allocate


class StepProgram:
    """Runs one bucket's operations over fixed memory: one foreign call per step, with the interpreter lock released.

    The op table is built once. It stays valid because arena, weights, inputs, outputs and cache never move.
    """

    def __init__(self, bucket: BucketRecord, library: ctypes.CDLL, memory: StepMemory, workers: WorkerPool) -> None:
        self.bucket = bucket
        self._workers = workers
        longest = max((len(call.args) for call in bucket.program), default=0)
        self._row_words = abi.row_words(longest)
        rows = len(bucket.program)
        self._table = allocate(rows * self._row_words * 8, "the op table").view(np.int64).reshape(rows, self._row_words)
        for row, call in zip(self._table, bucket.program, strict=True):
            row[0] = call.kernel
            row[1 : 1 + len(call.args)] = [memory.resolve(arg) for arg in call.args]
        self._counts = allocate(abi.COUNT_WORDS * 4, "the step counts").view(np.int32)
        self._step = function(library, "inferir_step")
        self._args = (address(self._table), rows, self._row_words, workers.control, address(self._counts))

    def run(self, counts: StepCounts) -> None:
        """Run the program over the step's inputs; its outputs are in memory when this returns."""
        self._counts[: len(counts)] = counts
        self._step(*self._args)

    def timed(self, counts: StepCounts, notes: ClaimNotes | None = None) -> OperationTimes:
        """Run, and have the step driver write its time stamps, those of the processor's cycle counter; and timed
        workers their `notes`.
        """
        stamps = np.zeros(len(self._table) + 1, np.int64)
        self._counts[: len(counts)] = counts
        self._workers.profile(address(stamps))
        if notes is not None:
            notes.begin(address(self._table), self._row_words * 8, len(self._table))
            self._workers.note_claims(notes.address)
        begin = time.monotonic_ns()
        try:
            self._step(*self._args)
        finally:
            end = time.monotonic_ns()
            self._workers.profile(0)
            self._workers.note_claims(0)
        return OperationTimes(begin, end, stamps, None if notes is None else notes.taken())

    def count_tasks(self, counts: StepCounts) -> npt.NDArray[np.int64]:
        """Run operation by operation, and return how many tasks each has [operations]; 0 stands for one or none."""
        self._counts[: len(counts)] = counts
        table, _, *rest = self._args
        found = np.zeros(len(self._table), np.int64)
        for i in range(len(found)):
            self._workers.forget_tasks()
            self._step(table + i * self._row_words * 8, 1, *rest)
            found[i] = self._workers.tasks_done()
        return found

    def profile(self, counts: StepCounts) -> npt.NDArray[np.int64]:
        """Run once and return the cycles each operation took, in program order."""
        return np.diff(self.timed(counts).stamps)
