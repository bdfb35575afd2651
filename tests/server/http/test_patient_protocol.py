"""Connections that do not say what they want are closed; all others are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from inferir.server.http import patient_protocol as protocol

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers after half a second."""
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def serving(body: Callable[[Connect], Awaitable[None]]) -> None:
    async def run() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        make = lambda: protocol.PatientProtocol(config, state, {})  # noqa: E731
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            await asyncio.wait_for(body(lambda: asyncio.open_connection("127.0.0.1", port)), 10)
        finally:
            server.close()

    asyncio.run(run())


@pytest.mark.parametrize("beginning", [b"", HEAD[:20]])
def test_headers_that_do_not_arrive(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)

    async def body(connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(beginning)
        assert await reader.read() == b""
        writer.close()

    serving(body)


def test_slow_answers_and_later_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an answer does not count, nor does that between requests; later requests' headers have the limit."""
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)

    async def body(connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(HEAD)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.3)
        writer.write(HEAD[:20])
        assert await reader.read() == b""
        writer.close()

    serving(body)
