"""The listening socket, bound before anything is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from inferir.ir.errors import EngineError

BACKLOG = 2048


def listen(host: str, port: int, uds: str | None = None) -> socket.socket:
    """A listening socket. Raises `EngineError` naming the address that cannot be had."""
    return _listen_unix(uds) if uds is not None else _listen_tcp(host, port)


def url(sock: socket.socket) -> str:
    """Where clients reach it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen_tcp(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise EngineError(f"port {port} is not a port; it must be from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise EngineError(f"host {host!r} cannot be resolved: {getattr(error, 'strerror', error)}") from None
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise EngineError(f"port {port} on {host} is in use; choose another with --port") from None
        raise EngineError(f"cannot listen on port {port} of {host}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def _listen_unix(path: str) -> socket.socket:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise EngineError(f"cannot listen on {path}: {error.strerror or error}") from None
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on. Raises `EngineError` if somebody does."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise EngineError(f"{path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise EngineError(f"{path} is in use by another server")
        os.unlink(path)
