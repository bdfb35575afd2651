"""The listening sockets, bound before anything is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import cast

from inferir.ir.errors import EngineError

BACKLOG = 2048
_TRIES = 20
"""Times that a free port is looked for which every address of a name has."""

Address = tuple[socket.AddressFamily, tuple[str | int, ...]]
"""A family, and what the system calls an address there: name, port, and for IPv6 more."""


def listen(host: str, port: int, uds: str | None = None) -> list[socket.socket]:
    """Listening sockets, one for each address of `host`. Raises `EngineError` naming the address that cannot be had."""
    return [_listen_unix(uds)] if uds is not None else _listen_tcp(host, port)


def url(sock: socket.socket) -> str:
    """Where clients reach it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def close(sockets: list[socket.socket], uds: str | None = None) -> None:
    """Close them, and remove the file of the Unix socket at `uds` if it is still the one that was made."""
    for sock in sockets:
        sock.close()
    with contextlib.suppress(OSError):
        if uds is not None and _made.pop(uds, None) == _identity(uds):
            os.unlink(uds)


def _listen_tcp(host: str, port: int) -> list[socket.socket]:
    if not 0 <= port <= 65535:
        raise EngineError(f"port {port} is not a port; it must be from 0 to 65535")
    if host.strip() in ("", "*"):  # which some systems take for a name, that of this machine
        shown = "empty" if not host.strip() else "no address"
        raise EngineError(
            f"--host is {shown}; give 0.0.0.0 or :: for all interfaces, or localhost for this machine only"
        )
    addresses = _resolve(host)
    for _ in range(_TRIES if port == 0 and len(addresses) > 1 else 1):
        sockets = _bind_all(host, port, addresses)
        if sockets:
            return sockets
    raise EngineError(f"no port is free on all addresses of {host}; choose one with --port")


def _resolve(host: str) -> list[Address]:
    """The addresses that `host` stands for, those of IPv4 first. `localhost` is both loopback addresses, whatever the
    machine's list of hosts says.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EngineError(f"host {host!r} cannot be resolved: {getattr(error, 'strerror', error)}") from None
    addresses: set[Address] = {(family, cast("tuple[str | int, ...]", address)) for family, _, _, _, address in found}
    if host == "localhost":
        addresses |= {(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0, 0, 0))}
    return sorted(addresses)


def _bind_all(host: str, port: int, addresses: list[Address]) -> list[socket.socket]:
    """A socket for each address that this machine has, all with one port; none if a free port was not free on all."""
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, (name, _, *more) in addresses:
        wanted = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind(family, (name, wanted, *more), only=len(addresses) > 1))
        except OSError as error:
            problem = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
    if sockets and (problem is None or problem.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
        return sockets
    assert problem is not None
    for sock in sockets:
        sock.close()
    if problem.errno == errno.EADDRINUSE and port == 0:
        return []
    if problem.errno == errno.EADDRINUSE:
        raise EngineError(f"port {port} on {host} is in use; choose another with --port") from None
    raise EngineError(f"cannot listen on port {port} of {host}: {os.strerror(problem.errno or 0)}") from None


def _bind(family: socket.AddressFamily, address: tuple[str | int, ...], *, only: bool) -> socket.socket:
    """`only`: an IPv6 socket leaves IPv4 to its neighbour."""
    both = family == socket.AF_INET6 and not only and socket.has_dualstack_ipv6()
    sock = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    sock.setblocking(False)
    return sock


_made: dict[str, tuple[int, int]] = {}
"""Identity of the file of each Unix socket that listens, by its path."""


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _listen_unix(path: str) -> socket.socket:
    if not path.strip():
        raise EngineError("--uds is empty; give the path of a socket")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(path)
        sock.listen(BACKLOG)
        _made[path] = _identity(path)
    except (OSError, ValueError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, OSError) and error.errno is None:  # Python's own check
            reason = f"a socket's path has at most 107 bytes, and this one has {len(os.fsencode(path))}"
        raise EngineError(f"--uds: cannot listen on {path}: {reason}") from None
    except EngineError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on. Raises `EngineError` if somebody does, or it is something else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise EngineError(f"--uds: {path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise EngineError(f"--uds: {path} is in use by another server")
    os.unlink(path)
