"""Private folders that tell, by a lock, whether the process that made them still lives.

    PREFIX-6f3a0c91d2e4/lock     marks the folder as ours; its maker holds an advisory lock on it
    PREFIX-6f3a0c91d2e4/...      whatever the maker puts there

The kernel drops the lock when the maker ends, however it ends. A folder is removed by others only if it belongs to this
user, and carries the mark with a free lock or is empty, as one is whose maker was killed before the mark was made; a
maker that loses its empty folder to others makes another one. An age is never enough, and no pid is involved, which
containers and hosts that share a folder would share too. Where the file system has no locks, only empty ones go.

Everything is done relative to descriptors and follows no link, so nothing outside a folder can be reached through it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EEXIST, EPERM
from pathlib import Path

LOCK = "lock"
_UNLOCKED = "lock.new"
_MARK = b"inferir: this folder is in use while a process holds the lock on this file\n"
_NO_LOCKS = b"a folder of inferir on a file system without locks: only its maker removes it\n"
_TRIES = 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_swept: set[tuple[str, str]] = set()
_swept_lock = threading.Lock()


@dataclass(eq=False)
class HeldFolder:
    """A folder of this process. `path` is for messages and other programs; `descriptor` is the folder itself, `parent`
    the one that it stands in.
    """

    path: Path
    descriptor: int
    parent: int
    _lock: int
    closed: bool = field(default=False, init=False)

    @property
    def address(self) -> str:
        """A path that leads here by the descriptor, whoever renames what in the folders above.

        It holds in this process, and in children that inherit the descriptor.
        """
        return f"/proc/self/fd/{self.descriptor}"

    def subfolder(self, name: str) -> Path:
        """A new folder in it."""
        os.mkdir(name, dir_fd=self.descriptor)
        return self.path / name

    def move_out(self, name: str, place: str) -> None:
        """Give the file `name` in it the name `place` beside it, over a file that has that name."""
        os.rename(name, place, src_dir_fd=self.descriptor, dst_dir_fd=self.parent)

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as that is possible. May be called again."""
        if not self.closed:
            with contextlib.suppress(OSError):
                _remove(self.parent, self.path.name, self.descriptor)
        self.abandon()

    def abandon(self) -> None:
        """Leave the folder as it is, for the next process that looks for abandoned ones."""
        if not self.closed:
            self.closed = True
            for descriptor in (self.descriptor, self.parent, self._lock):
                os.close(descriptor)


def make_held(parent: int, where: Path, prefix: str) -> HeldFolder:
    """A new folder in the folder `parent` (a descriptor; `where` is its path for messages). Raises OSError."""
    for _ in range(_TRIES):
        name = f"{prefix}-{os.urandom(6).hex()}"
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            made = _hold(parent, where, name)
        except FileExistsError:
            continue
        except OSError as error:  # such as a full disk; what it names is but the mark, if anything
            raise OSError(error.errno, error.strerror, str(where)) from error
        if made is not None:
            return made
    raise FileExistsError(EEXIST, "no private folder could be made", str(where))


def _hold(parent: int, where: Path, name: str) -> HeldFolder | None:
    """Mark the new folder `name`; None if another process took it for abandoned before the mark was locked."""
    try:
        folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(EPERM, "a private folder was replaced by another user", str(where / name))
        lock = _take_lock(folder)  # may fail, so nothing else is open before it
        return HeldFolder(where / name, folder, os.dup(parent), lock)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _remove(parent, name, folder)
        os.close(folder)
        if isinstance(error, FileNotFoundError | BlockingIOError):
            return None
        raise


@contextmanager
def held_folder(parent: Path, prefix: str) -> Iterator[HeldFolder]:
    """A folder in `parent` for the block; what killed processes left there under `prefix` goes first."""
    descriptor = os.open(parent, _FOLDER)
    try:
        remove_abandoned(descriptor, prefix)
        folder = make_held(descriptor, parent, prefix)
    finally:
        os.close(descriptor)
    try:
        yield folder
    finally:
        folder.remove()


@contextmanager
def scratch_folder(kind: str) -> Iterator[HeldFolder]:
    """A folder for temporary files, for the block. The first of a `kind` in a process removes abandoned ones."""
    folder = make_scratch(kind)
    try:
        yield folder
    finally:
        folder.remove()


def make_scratch(kind: str, root: Path | None = None) -> HeldFolder:
    """A folder for temporary files below `root` (TMPDIR), until its `remove` is called or the process ends."""
    root = root or _temporary_root()
    remove_abandoned_scratch(kind, root)
    descriptor = os.open(root, _FOLDER)
    try:
        return make_held(descriptor, root, f"inferir-{kind}")
    finally:
        os.close(descriptor)


def remove_abandoned_scratch(kind: str, root: Path | None = None) -> None:
    """Remove what killed processes left of a kind of temporary folders; once per process. Raises nothing."""
    with contextlib.suppress(OSError):
        root = root or _temporary_root()
        with _swept_lock:
            if (str(root), kind) in _swept:
                return
            _swept.add((str(root), kind))
        descriptor = os.open(root, _FOLDER)
        try:
            remove_abandoned(descriptor, f"inferir-{kind}")
        finally:
            os.close(descriptor)


def remove_abandoned(parent: int, prefix: str, rescue: Callable[[int], None] | None = None) -> int:
    """Remove the folders under `prefix` in `parent` whose makers have ended; returns how many. Raises nothing.

    `rescue(descriptor)` may take something out of a folder before it goes.
    """
    try:
        names = _candidates(parent, prefix)
    except OSError:
        return 0
    removed = 0
    for name in names:
        with contextlib.suppress(OSError):
            removed += _remove_if_abandoned(parent, name, rescue)
    return removed


def abandoned_names(parent: int, prefix: str) -> list[str]:
    """Names of the folders that `remove_abandoned` would remove. Raises OSError if `parent` cannot be listed."""
    found = []
    for name in sorted(_candidates(parent, prefix)):
        with contextlib.suppress(OSError):
            if _remove_if_abandoned(parent, name, None, only_look=True):
                found.append(name)
    return found


def _candidates(parent: int, prefix: str) -> list[str]:
    """What has a name as `make_held` gives them. Raises OSError."""
    pattern = re.compile(re.escape(prefix) + r"-[0-9a-f]{12}")
    return [name for name in os.listdir(parent) if pattern.fullmatch(name)]


def remove_contents(folder: int, keep: str | None = None) -> None:
    """Remove all that is in a folder, links as links; `keep` names what stays.

    Raises the first OSError, after everything that can be removed is.
    """
    problem: OSError | None = None
    for name in os.listdir(folder):
        if name == keep:
            continue
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                _remove_folder(folder, name)
            else:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _remove_folder(parent: int, name: str) -> None:
    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        remove_contents(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=parent)


def _temporary_root() -> Path:
    from tempfile import gettempdir  # it loads much that a serving process has no other use for

    return Path(gettempdir())


def _take_lock(folder: int) -> int:
    """Put the mark into a folder, locked from the first moment it can be seen; the lock's descriptor."""
    lock = os.open(_UNLOCKED, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        locked = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process has just taken the folder for abandoned
            raise
        except OSError:
            locked = False
        os.write(lock, _MARK if locked else _NO_LOCKS)
        if locked:
            os.rename(_UNLOCKED, LOCK, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove_if_abandoned(parent: int, name: str, rescue: Callable[[int], None] | None, only_look: bool = False) -> bool:
    folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        names = os.listdir(folder)
        if not names:
            if not only_look:
                os.rmdir(name, dir_fd=parent)
            return True
        mark = _UNLOCKED if names == [_UNLOCKED] else LOCK
        lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(lock)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return False
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: in use, or no locks here
            text = os.read(lock, 200)
            if text != _MARK and (mark == LOCK or text):
                return False
            if only_look:
                return True
            if rescue is not None:
                rescue(folder)
            _remove(parent, name, folder)
            return True
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _remove(parent: int, name: str, folder: int) -> None:
    """Empty the folder with the descriptor `folder`, its mark last, and remove its name if that is still its own."""
    remove_contents(folder, keep=LOCK)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(LOCK, dir_fd=folder)
    if os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(folder)):
        os.rmdir(name, dir_fd=parent)
