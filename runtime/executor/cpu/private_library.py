"""Loading a library that is in memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

from inferir.ir.system.held_folder import scratch_folder


def load_library(library: bytes, purpose: str) -> ctypes.CDLL:
    """Load a library through a private file, reached by its folder's descriptor: no other file can take its place.

    `purpose` is part of the folder's name.
    """
    with scratch_folder(purpose) as folder:
        # The loader knows libraries by their path: a path is never used twice.
        path = Path(folder.address, f"{folder.path.name}.so")
        path.write_bytes(library)
        return ctypes.CDLL(str(path))
