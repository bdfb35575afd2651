"""Worker threads of the step programs.

A worker is a Python thread that spends its life inside generated code: it claims tasks of the running operation,
spins for a moment when there is none, then sleeps until the next is published. One pool serves the programs of all
buckets.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np

from inferir.ir.contract import abi
from inferir.ir.errors import ArtifactError
from inferir.runtime.memory import address, align, allocate

SPIN = 4000
"""Pauses before an idle worker sleeps: longer than the gaps inside a step, shorter than a scheduler slice."""


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "inferir_step": (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    "inferir_worker": (ctypes.c_void_p, ctypes.c_int32),
    "inferir_stop": (ctypes.c_void_p,),
}


def function(library: ctypes.CDLL, name: str) -> Any:
    """A C function of a bucket's library (`inferir.ir.contract.abi`), which is called without the interpreter lock.

    Raises `ArtifactError` if the library lacks it.
    """
    try:
        found = getattr(library, name)
    except AttributeError:
        raise ArtifactError(f"{library._name}: no function {name}; compile the model again") from None
    found.argtypes = _SIGNATURES[name]
    found.restype = ctypes.c_int32
    return found


class WorkerPool:
    """The control block of the step programs, and `threads` - 1 workers beside the thread that calls `inferir_step`.

    `library` is any bucket's library; it stays loaded as long as the pool. `scratch_bytes` is what each thread needs.
    `control` is the address of the control block.
    """

    def __init__(self, library: ctypes.CDLL, *, threads: int, scratch_bytes: int, spin: int = SPIN) -> None:
        per_thread = align(max(scratch_bytes, 1))
        self._control = allocate(abi.CTRL_WORDS * 8, "the control block").view(np.int64)
        self._scratch = allocate(per_thread * threads, "scratch memory")
        self.control = address(self._control)
        self._control[abi.WORKERS] = threads - 1
        self._control[abi.SPIN] = spin
        self._control[abi.SCRATCH] = address(self._scratch)
        self._control[abi.SCRATCH_BYTES] = per_thread
        self._threads = threads
        self.start(library)

    def start(self, library: ctypes.CDLL) -> None:
        """Start the workers of `library`."""
        self._control[abi.STOP] = 0
        work = function(library, "inferir_worker")
        workers = [
            threading.Thread(target=work, args=(self.control, tid), name=f"inferir-worker-{tid}", daemon=True)
            for tid in range(1, self._threads)
        ]
        for worker in workers:
            worker.start()
        # Stops the workers at the latest before the interpreter goes away; it keeps alive what they still touch.
        memory = (library, self._control, self._scratch)
        self._stop = weakref.finalize(self, _stop, function(library, "inferir_stop"), workers, memory)

    def profile(self, stamps: int) -> None:
        """Have steps write time stamps to the address `stamps`, or none for 0."""
        self._control[abi.PROFILE] = stamps

    def note_claims(self, notes: int) -> None:
        """Have timed workers note their claims at the address `notes`, or nowhere for 0."""
        self._control[abi.CLAIMS] = notes

    def tasks_done(self) -> int:
        """Tasks of the operation that was published last, which has ended; those of one task are not published."""
        return int(self._control[abi.DONE])

    def forget_tasks(self) -> None:
        """Have `tasks_done` be 0 unless another operation is published."""
        self._control[abi.DONE] = 0

    def close(self) -> None:
        """Stop and join the workers; calling it again has no effect."""
        self._stop()


def _stop(stop: Any, workers: list[threading.Thread], memory: tuple[Any, ...]) -> None:
    stop(address(memory[1]))
    for worker in workers:
        worker.join()
