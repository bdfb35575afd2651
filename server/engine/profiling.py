"""The front process's side of recording steps in the engine process: one recording at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferir.ir.errors import EngineError
from inferir.runtime.recording.recorded_steps import Recording
from inferir.server.engine import messages as m
from inferir.server.http.http_errors import ApiError, engine_died


class Profiling:
    """Starts and stops recordings by messages that `send` takes."""

    def __init__(self, send: Callable[[m.ToEngine], None]) -> None:
        self._send = send
        self._recording = False
        self._answer: asyncio.Future[Recording | None] | None = None

    async def start(self, message: m.StartProfile) -> None:
        """Have the engine record its steps. Raises `ApiError` if it does already, or no engine is there."""
        if self._recording or self._answer is not None:
            raise ApiError(409, "steps are being recorded already; POST /stop_profile ends that", code="profiling")
        await self._ask(message)
        self._recording = True

    async def stop(self) -> Recording:
        """End the recording and return it. Raises `ApiError` if there is none, or the engine died with it."""
        if not self._recording or self._answer is not None:
            text = "no steps are being recorded; POST /start_profile begins that"
            raise ApiError(409, text, code="not_profiling")
        found = await self._ask(m.StopProfile())
        self._recording = False
        if found is None:
            raise engine_died()
        return found

    def received(self, recording: Recording | None) -> None:
        """The engine has answered."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(recording)

    def lost(self) -> None:
        """The engine process has ended, and its recording with it."""
        self._recording = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(engine_died())

    async def _ask(self, message: m.ToEngine) -> Recording | None:
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            return await self._answer
        except EngineError:
            raise engine_died() from None
        finally:
            self._answer = None
