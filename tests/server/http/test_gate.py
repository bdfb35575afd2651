"""What happens to a request before and after its route, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inferir.server.http.gate import Gate, _origin_form

ORIGIN = (b"origin", b"http://a")
ASKS = (b"access-control-request-method", b"POST")


async def route(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def answer(
    *headers: tuple[bytes, bytes], method: str = "GET", path: str = "/v1/models", keys: tuple[str, ...] = ("k",)
) -> tuple[int, dict[str, str]]:
    """Status and headers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": list(headers)}
    gate = Gate(route, keys=keys, origins=("http://a",))
    asyncio.run(gate(scope, None, send))  # type: ignore[arg-type]
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], {n.decode(): v.decode() for n, v in sent[0]["headers"]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 401),
        (((b"authorization", b"Bearer k"),), 200),
        (((b"authorization", b"bearer  k "),), 200),
        (((b"authorization", b"Bearer x"),), 401),
        (((b"authorization", b"Basic k"),), 401),
        (((b"authorization", b"Bearer"),), 401),
        (((b"authorization", b"Bearer k"),) * 2, 401),
    ],
)
def test_keys(headers: tuple[tuple[bytes, bytes], ...], status: int) -> None:
    assert answer(*headers)[0] == status
    assert answer(*headers, path="/health")[0] == 200
    assert answer(*headers, keys=())[0] == 200


@pytest.mark.parametrize(("given", "kept"), [(b"my-1", True), (b"", False), (b"x" * 129, False), (b"a\x7fb", False)])
def test_request_ids(given: bytes, kept: bool) -> None:
    _, headers = answer((b"x-request-id", given), keys=())
    assert (headers["x-request-id"] == given.decode()) is kept
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("origin", "allowed"), [(b"http://a", "http://a"), (b"http://b", None)])
def test_origins(origin: bytes, allowed: str | None) -> None:
    status, headers = answer((b"origin", origin), ASKS, method="OPTIONS")  # a preflight needs no key
    assert (status, headers.get("access-control-allow-origin")) == (204, allowed)
    assert ("access-control-allow-methods" in headers) is (allowed is not None)
    status, headers = answer((b"origin", origin), keys=())
    assert (status, headers.get("access-control-allow-origin"), "vary" in headers) == (200, allowed, bool(allowed))


def test_options_of_the_server() -> None:
    assert answer(method="OPTIONS", path="*")[1]["allow"] == "GET, HEAD, POST, OPTIONS"


@pytest.mark.parametrize(
    ("method", "target", "path"),
    [
        ("GET", "/x", "/x"),
        ("GET", "http://host:1/x%20y", "/x y"),
        ("GET", "HTTPS://host", "/"),
        ("OPTIONS", "http://host", "*"),
        ("GET", "ftp://host/x", "ftp://host/x"),
    ],
)
def test_targets(method: str, target: str, path: str) -> None:
    scope = {"method": method, "path": target, "raw_path": target.encode()}
    assert _origin_form(scope)["path"] == path
