"""The interface between the library of a bucket and the host that runs it.

The functions of the shared object (x86-64 System V; each returns int32 0)::

    inferir_step(int64 *table, int32 n_ops, int32 row_words, int64 *ctrl, int32 *counts)
    inferir_dispatch(int64 *row, int32 first, int32 tasks, int32 *counts, float *scratch)
    inferir_worker(int64 *ctrl, int32 tid)        body of worker thread tid = 1, 2, …; returns after inferir_stop
    inferir_stop(int64 *ctrl)

`table` holds a row of `row_words` int64 per operation: the kernel's number, its position in the library, then the
absolute addresses of its parameters. `counts` is int32[COUNT_WORDS]: the step's counts in the order of
`symbols.StepCounts`, then the number of threads, which `inferir_step` sets, and zeros. `ctrl`, the control block, is
int64[CTRL_WORDS], zeroed by the host, which then sets the words WORKERS to CLAIMS. All of these, and every buffer, are
aligned to 64 bytes.
"""

from __future__ import annotations

from inferir.ir.contract.symbols import COUNTED

ABI_VERSION = 4
"""A runtime runs libraries of exactly its own version."""

THREADS = len(COUNTED)
"""Word of the counts with the number of threads."""
COUNT_WORDS = (THREADS + 8) // 8 * 8

CTRL_WORDS = 64
TICKET = 0
"""End of the tasks that are left << 32 | the first of them."""
DONE = 8
"""Tasks done."""
LATE = 9
"""int32: the leader waits for the last tasks longer than it should."""
ROW, COUNTS, DISPATCH = 16, 17, 18
"""Addresses of the running operation's table row, of the counts, and of the dispatch function."""
PREFETCH, PREFETCH_BYTES, PREFETCH_TASKS = 19, 20, 21
"""What threads without work may prefetch (0: nothing): address, bytes per task, negative where claims are run
downwards, and tasks."""
EPOCH = 24
"""int32: the futex word that sleeping workers wait on."""
SLEEPERS = 32
"""int32: how many workers sleep."""
STOP = 40
"""int32: workers are to return."""
WORKERS = 41
"""Number of worker threads."""
SPIN = 42
"""Pauses that an idle worker spins before it sleeps."""
SCRATCH, SCRATCH_BYTES = 43, 44
"""Address of scratch memory, the leader's first, and its bytes per thread: a multiple of 64."""
PROFILE = 45
"""0, or the address of int64[n_ops + 1] for time stamps in cycles: at the start and after each operation."""
CLAIMS = 46
"""0, or the address of what workers note of their claims, if their library's workers are timed, as those of a profile
are and those of artifacts are not: int64[CLAIMS_HEAD], then per worker, from tid 1 on, int64[n_ops, CLAIM_WORDS]. The
head is the address of the table, bytes of its rows, and bytes per worker. A worker's words of an operation: the cycle
counter before its first claim ran and after its last one did, the cycles in between that it worked, and its tasks."""
CLAIMS_HEAD, CLAIM_WORDS = 8, 4


def row_words(parameters: int) -> int:
    """Words of a table row that fits kernels of up to so many parameters: a multiple of 8."""
    return (parameters + 8) // 8 * 8
