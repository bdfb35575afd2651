"""Limits of the process that a server needs to know, and may raise."""

from __future__ import annotations

import resource

from inferir.ir.errors import EngineError

NEEDED_FILES = 64
"""Open files without which no server starts: those of two processes' libraries, sockets and pipes, and a few clients.
ZeroMQ ends the process if it gets none."""


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one; child processes inherit it. Returns what holds now.

    Raises `EngineError` if that is less than `NEEDED_FILES`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # above what the system allows by now
    if soft != resource.RLIM_INFINITY and soft < NEEDED_FILES:
        raise EngineError(
            f"the limit of open files is {soft}, too few for a server; allow at least {NEEDED_FILES} (ulimit -n)"
        )
    return soft
