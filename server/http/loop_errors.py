"""What the event loop reports of itself, in the log: one line each, and not the same one again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from inferir.ir.system.error_report import describe

QUIET_SECONDS = 60.0
"""During which a message is not repeated: a full table of files gives thousands a second."""

log = logging.getLogger("inferir.server")


class LoopErrors:
    """An exception handler for `loop.set_exception_handler`."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message") or "an error in the event loop")
        error = context.get("exception")
        if isinstance(error, BaseException):
            message = f"{message}: {describe(error)[0]}"
        self.warn(message)

    def warn(self, message: str) -> None:
        """Log `message` unless it was logged a moment ago."""
        now = time.monotonic()
        if now - self._said.get(message, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._said = {m: t for m, t in self._said.items() if now - t < QUIET_SECONDS}
            self._said[message] = now
            log.warning("%s", message)
