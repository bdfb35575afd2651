"""The socket that leads to an engine process: what comes is handed to a function, and sending never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from inferir.ir.errors import EngineError
from inferir.server.engine import messages as m

BATCH = 8  # messages that are handed over before others get their turn


class EngineLink:
    """Binds `address` for one engine process. To be used in the event loop's thread.

    ZeroMQ's file descriptor says that something happened, not that a message is there: it is quiet again after any
    call on the socket. So every reading goes on until the socket is empty, and every sending looks for messages too.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, receive: Callable[[bytes], None]) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._socket = m.pair_socket(context)
        self._socket.bind(address)
        self._loop.add_reader(self._socket.fileno(), self.read)
        self._scheduled = False

    def send(self, data: bytes) -> None:
        """Send a message. Raises `EngineError` if no engine process is connected."""
        if self._socket.closed:
            raise EngineError("the engine process is not running")
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            raise EngineError("the engine process is not connected") from None
        if self._socket.poll(0):
            self._schedule()

    def read(self) -> None:
        """Hand over the messages that are there."""
        self._scheduled = False
        for _ in range(BATCH):
            if self._socket.closed:
                return
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(data)
        self._schedule()

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close(linger=0)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.read)
