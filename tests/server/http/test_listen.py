"""Where a server listens: every address of a name, a Unix socket, and one line for what cannot be had."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferir.ir.errors import EngineError
from inferir.server.http.listen import close, listen, url


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Sockets that the test leaves to be closed."""
    sockets: list[socket.socket] = []
    yield sockets
    close(sockets)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_localhost_is_both_loopback_addresses(opened: list[socket.socket]) -> None:
    opened += listen("localhost", 0)
    port = opened[0].getsockname()[1]
    assert {s.getsockname()[1] for s in opened} == {port}
    assert url(opened[0]) == f"http://127.0.0.1:{port}"
    for host in ("127.0.0.1", *(["::1"] if has_ipv6() else [])):
        socket.create_connection((host, port), timeout=5).close()


def test_a_name_with_an_address_that_this_machine_lacks(
    opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 0)) for name in ("203.0.113.7", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
    opened += listen("both.example", 0)
    assert [s.getsockname()[0] for s in opened] == ["127.0.0.1"]


def test_one_address_of_a_name_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 0)) for name in ("127.0.0.1", "127.0.0.2")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
        with pytest.raises(EngineError, match=f"^port {port} on two.example is in use; choose another with --port$"):
            listen("two.example", port)
        with socket.socket() as free:  # the other address was given back
            free.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["", "  "])
def test_an_empty_host_says_what_to_write(host: str) -> None:
    with pytest.raises(EngineError, match=re.escape("--host is empty; give 0.0.0.0 or :: for all interfaces")):
        listen(host, 0)


def test_a_star_is_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems take it for the loopback address, whoever writes it means all interfaces."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail("it was looked up"))
    with pytest.raises(EngineError, match=re.escape("--host is no address; give 0.0.0.0 or :: for all interfaces")):
        listen("*", 0)


def test_hosts_that_are_none() -> None:
    for host in ("no such host", "a" * 300, "é" * 70, "1.2.3.4.5", "\udcff", "a\0b"):
        with pytest.raises(EngineError, match="cannot be resolved"):
            listen(host, 0)


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / os.fsdecode(b"s\xff"))
    for _ in range(2):  # the second one finds what a killed server left
        sockets = listen("", 0, path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        with pytest.raises(EngineError, match="is in use by another server"):
            listen("", 0, path)
        sockets[0].close()
    close(sockets, path)
    assert list(tmp_path.iterdir()) == []


def test_a_unix_socket_of_another_server_is_left(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    sockets = listen("", 0, path)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        close(sockets, path)
        assert Path(path).is_socket()


def test_unix_sockets_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(file)
    cases = {
        "": "--uds is empty",
        str(file): "exists and is not a socket; choose another path",
        str(link): "exists and is not a socket",
        str(tmp_path): "exists and is not a socket",
        str(tmp_path / ("x" * 120)): "a socket's path has at most 107 bytes, and this one has",
        "/nowhere/sock": "No such file or directory",
        "/proc/sock": "cannot listen on /proc/sock",
        "a\0b": "embedded null byte",
    }
    for path, reason in cases.items():
        with pytest.raises(EngineError, match=re.escape(reason)) as raised:
            listen("", 0, path)
        assert str(raised.value).startswith("--uds")
    assert file.read_text() == "mine"
    assert link.is_symlink()
