"""Opening what is in the compile cache: by descriptors, through no link, and only what no other user can write to.

Checksums guard against damage. Against others guard owner and mode: what is used belongs to this user or to root, and
nobody else may write to it. Because every step from the root to a file is checked on the open descriptor, the folders
above the root need not be: whoever can replace the root can only put something there that is not ours.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP, ENOTDIR
from pathlib import Path
from typing import BinaryIO, NamedTuple

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_GROUP_WRITABLE, _WRITABLE = stat.S_IWGRP, stat.S_IWGRP | stat.S_IWOTH


class RefusedError(Exception):
    """Something in the cache that is not used, read or removed; `path` is a link, say, or belongs to somebody else."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


class Folder(NamedTuple):
    """An open folder; `path` is for messages only."""

    descriptor: int
    path: Path


@contextmanager
def open_root(root: Path, create: bool = False) -> Iterator[Folder]:
    """The folder that the user named, which may be a link of theirs. Raises OSError and RefusedError."""
    try:
        link = os.lstat(root)
    except FileNotFoundError:
        if not create:
            raise
        root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(root, 0o700)
        link = os.lstat(root)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise RefusedError(root, f"is a link that belongs to {_user(link.st_uid)}")
    descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        check_trust(descriptor, root)
        yield Folder(descriptor, root)
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(parent: Folder, name: str, create: bool = False) -> Iterator[Folder]:
    """The folder `name` in `parent`. Raises OSError, and RefusedError for a link, a file, or what others can write."""
    path = parent.path / name
    try:
        try:
            descriptor = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent.descriptor)
        except FileNotFoundError:
            if not create:
                raise
            _make(parent, name)
            descriptor = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent.descriptor)
    except OSError as error:
        if error.errno in (ENOTDIR, ELOOP):
            raise RefusedError(path, "is a link" if _is_link(parent, name) else "is not a folder") from None
        raise
    try:
        check_trust(descriptor, path)
        yield Folder(descriptor, path)
    finally:
        os.close(descriptor)


def _make(parent: Folder, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent.descriptor)
    except FileExistsError:
        pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(parent.path / name)) from error


def read_file(folder: Folder, name: str) -> bytes:
    """The content of the regular file `name`. Raises OSError, and RefusedError for anything else.

    It is looked at before it is opened, for opening a device may do something, and a FIFO would wait.
    """
    with open_file(folder, name) as file:
        return file.read()


@contextmanager
def open_file(folder: Folder, name: str) -> Iterator[BinaryIO]:
    """The regular file `name`, open for reading. Raises as `read_file`."""
    path = folder.path / name
    check_regular(folder, name)
    with open(os.open(name, _OPEN | os.O_NONBLOCK, dir_fd=folder.descriptor), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RefusedError(path, "is not a file")
        check_trust(file.fileno(), path)
        yield file


def check_regular(folder: Folder, name: str) -> None:
    """Raise RefusedError if `name` is a link, a folder, or anything but a regular file; OSError if it is not there."""
    mode = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        raise RefusedError(folder.path / name, "is a link" if stat.S_ISLNK(mode) else "is not a file")


def check_trust(descriptor: int, path: Path) -> None:
    """Raise RefusedError if another user could have written what is open as `descriptor`."""
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        raise RefusedError(path, f"belongs to {_user(found.st_uid)}")
    writable = found.st_mode & _WRITABLE
    if not writable or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return  # in a folder with the sticky bit nobody can replace what is ours
    if writable == _GROUP_WRITABLE and _is_private(found.st_gid, descriptor):
        return
    raise RefusedError(path, "can be written to by other users")


def _is_private(group: int, descriptor: int) -> bool:
    """Whether a group is this user's own, as many systems give every user one, and no access list widens it."""
    user = os.geteuid()
    if user == 0:
        return False
    try:
        name, record = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    if record.gr_name != name or set(record.gr_mem) - {name}:
        return False
    try:
        return "system.posix_acl_access" not in os.listxattr(descriptor)
    except OSError:  # a file system without such lists
        return True


def _is_link(parent: Folder, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=parent.descriptor, follow_symlinks=False).st_mode)
    return False


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
