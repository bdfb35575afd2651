"""Private folders for sockets between processes, with paths short enough for the system's addresses."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from inferir.ir.errors import EngineError
from inferir.ir.system.held_folder import HeldFolder, make_scratch

MAX_BYTES = 70
"""Of the folder's path: an address of a Unix socket has 107 bytes, and two names come behind the folder's."""

FALLBACKS = ("/tmp", "/var/tmp", "/dev/shm")


def make_socket_folder() -> HeldFolder:
    """A new folder that only this user can enter. The first one of a process removes those of killed servers."""
    return make_scratch("server", socket_root())


def socket_root(fallbacks: Sequence[str] = FALLBACKS) -> Path:
    """The folder for temporary files if sockets can be in it, else the first of `fallbacks` that takes them.

    Raises `EngineError` naming TMPDIR if there is none.
    """
    try:
        usual = tempfile.gettempdir()
    except OSError:
        usual = os.environ.get("TMPDIR", "")
    for place in (usual, *fallbacks):
        if _takes_sockets(place):
            return Path(place)
    raise EngineError(
        f"TMPDIR: no socket can be made in {usual or 'any folder'}; set it to a folder that can be written, "
        f"with a path of at most {MAX_BYTES} bytes in UTF-8"
    )


def _takes_sockets(place: str) -> bool:
    try:
        size = len(place.encode())
    except UnicodeEncodeError:  # ZeroMQ takes addresses in UTF-8 only
        return False
    return 0 < size <= MAX_BYTES and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)
