"""Limits of the process that a server needs to know, and may raise."""

from __future__ import annotations

import resource
import threading

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


def check_threads(count: int = 4) -> None:
    """Start and end so many threads at once. ZeroMQ, which starts two, ends the process if it gets none.

    Raises `EngineError` if the system refuses.
    """
    done = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=done.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        raise EngineError(
            "no thread can be started: the limit of processes (ulimit -u) or of memory (ulimit -v) is reached"
        ) from None
    finally:
        done.set()
        for thread in threads:
            thread.join()
