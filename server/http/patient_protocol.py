"""HTTP connections that may not take for ever to say what they want."""

from __future__ import annotations

import asyncio
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0
RESERVED_FILES = 24
"""File numbers that connections leave to the rest of the server, so that it can start another engine process."""

FULL = "the limit of open files (ulimit -n) is reached"
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class PatientProtocol(H11Protocol):
    """Closes a connection whose headers have not arrived `HEADER_SECONDS` after it was made, or after their first byte.

    Between requests the server's keep-alive timeout holds; bodies have a time limit of their own.
    """

    most_files: int = sys.maxsize
    """Open files that the process may have."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # File numbers are given out from below, so a high one says that few are left.
        if transport.get_extra_info("socket").fileno() >= self.most_files - RESERVED_FILES:
            self.loop.call_exception_handler({"message": f"connections are refused: {FULL}"})
            transport.write(_BUSY)
            transport.close()
            return
        self._deadline = self.loop.call_later(HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
