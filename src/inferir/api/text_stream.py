"""An answer as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from inferir.api.local_engine import LocalEngine
from inferir.api.outputs import Job, RequestOutput, request_output
from inferir.ir.errors import EngineError


class TextStream(Iterator[str]):
    """Pieces of one answer's text as they come. After the last piece, `output` is the whole answer."""

    def __init__(self, engine: LocalEngine, job: Job) -> None:
        self._engine = engine
        self._job = job
        self._pieces = engine.run(job)

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def output(self) -> RequestOutput:
        """The answer. Raises `EngineError` while the request goes on."""
        if not self._job.finished:
            raise EngineError("the request is not finished")
        return request_output([self._job])

    def stop(self) -> None:
        """Have the request end before its next step; what is there is still given out. Signal handlers may call it."""
        self._engine.stop(self._job)

    def close(self) -> None:
        """End the request if it still runs."""
        self._engine.drop([self._job])

    def __del__(self) -> None:
        self._engine.stop(self._job)  # the collector may run this inside a step
