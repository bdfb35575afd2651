"""Process trees: holding them still while another one is measured, and ending them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

END_SECONDS = 20.0


class Pausable(Protocol):
    def pause(self) -> None: ...

    def resume(self) -> None: ...


def end_in_order() -> None:
    """Let a termination signal unwind this program, so that it ends the processes that it has started and stopped."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def tree(pid: int) -> list[int]:
    """The process and all that descend from it, parents first."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to each; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def pause(pid: int) -> None:
    """Stop a tree: its spinning threads take no time from others."""
    send(tree(pid), signal.SIGSTOP)


def resume(pid: int) -> None:
    send(tree(pid), signal.SIGCONT)


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
    """End a tree, also a stopped one: the first process by a signal that it may handle, what is left by force."""
    pids = tree(process.pid)
    send(pids, signal.SIGCONT)
    if process.poll() is None:
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    left = [pid for pid in pids if pid != process.pid or process.poll() is None]
    send(left, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def turn(item: Pausable) -> Iterator[None]:
    """Let one paused item run for the length of a block."""
    item.resume()
    try:
        yield
    finally:
        item.pause()
