"""Child processes that end when the process that started them does, however that ends.

The kernel sends the signal when the *thread* that started the child ends: start children from a thread that outlives
them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

_PARENT = "INFERIR_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a child that calls `die_with_parent`: it says which process is the parent."""
    return {**environ, _PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it (see `child_environment`) ends.

    Without such a parent, as when somebody runs the child's program by hand, nothing is changed.
    """
    parent = os.environ.pop(_PARENT, "")
    if not parent.isdecimal():
        return
    _prctl()(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before the call
        sys.exit(0)


def before_exec() -> Callable[[], None]:
    """The same for a program that is not ours: a `preexec_fn` for a parent without other threads in Python."""
    prctl, parent = _prctl(), os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)

    return arm


def _prctl() -> Any:
    import ctypes  # which a process that only starts children has no use for

    return ctypes.CDLL(None).prctl
