"""The C interface of a bucket's library, as the host sees it.

    inferir_step(int64 *table, int32 n_ops, int32 row_words, int64 *ctrl, int32 *counts)
    inferir_worker(int64 *ctrl, int32 tid)        body of worker thread tid = 1, 2, …; returns after inferir_stop
    inferir_stop(int64 *ctrl)

A table row is the kernel's number and then the addresses of its parameters. `counts` is int32[8]: T, S, R, A, the
number of attention work items to merge, G, then zeros. The control block is int64[CTRL_WORDS], zeroed, with the fields
below set once by the host. All three return 0.
"""

from __future__ import annotations

import ctypes
from typing import Any

from inferir.ir.errors import ArtifactError

ABI_VERSION = 3

CTRL_WORDS = 64
WORKERS = 41
"""Word with the number of worker threads."""
SPIN = 42
"""Word with the pauses an idle worker spins before it sleeps."""
SCRATCH = 43
"""Word with the address of the scratch memory: SCRATCH_BYTES for each thread, the leader's first."""
SCRATCH_BYTES = 44
PROFILE = 45
"""Word with 0, or the address of int64[n_ops + 1] for time stamps in cycles."""
COUNT_WORDS = 8

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "inferir_step": (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    "inferir_worker": (ctypes.c_void_p, ctypes.c_int32),
    "inferir_stop": (ctypes.c_void_p,),
}


def function(library: ctypes.CDLL, name: str) -> Any:
    """A function of the interface with its signature set. Calls release the interpreter lock.

    Raises `ArtifactError` if the library lacks it.
    """
    try:
        found = getattr(library, name)
    except AttributeError:
        raise ArtifactError(f"{library._name}: no function {name}; compile the model again") from None
    found.argtypes = _SIGNATURES[name]
    found.restype = ctypes.c_int32
    return found
