"""Private folders for sockets, which the next server removes if their own was killed and could not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "inferir-"
LOCK = "lock"
MIN_AGE = 60.0
"""Seconds before a folder without a lock counts as left behind: it may be about to get one."""

_locks: dict[Path, int] = {}


def make_socket_folder() -> Path:
    """A new folder that only this user can enter. Others of dead processes are removed.

    The folder is in use while this process holds its lock, so it may be removed at any time, and is held until then.
    """
    root = Path(tempfile.gettempdir())
    _forget_removed()
    remove_stale(root)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    _locks[folder] = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(_locks[folder], fcntl.LOCK_EX)
    return folder


def remove_stale(root: Path) -> None:
    """Remove this user's socket folders in `root` that no process holds the lock of."""
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > MIN_AGE and _is_ours(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether a folder has nothing but what is made here, and nobody holds its lock."""
    if folder.is_symlink() or not {p.name for p in folder.iterdir()} <= {LOCK, "engine"}:
        return False
    if not (folder / LOCK).exists():
        return True
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _forget_removed() -> None:
    for folder in [f for f in _locks if not f.exists()]:
        os.close(_locks.pop(folder))
