"""The engine in this process, shared by threads: whoever waits for an answer runs the steps, for all requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from inferir.api.outputs import Job, RequestOutput, request_output
from inferir.ir.errors import EngineError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_loop import EngineLoop
from inferir.runtime.engine.request_maker import RequestOptions
from inferir.runtime.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inferir.runtime.structured import Grammar, StructuredSpec

GRAMMARS_AT_ONCE = 64
"""Grammars that one call may have waiting to be compiled."""


class LocalEngine:
    """Several threads may use it. `lock` is held by whoever uses the engine itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self._loop = EngineLoop(engine)
        self._stopped: deque[Job] = deque()
        self._closed = False

    def start(
        self,
        prompts: Sequence[tuple[str | None, Sequence[int]]],
        params: Sequence[SamplingParams],
        options: Sequence[RequestOptions],
    ) -> list[list[Job]]:
        """Queue all prompts, each with its text if it has one, or none if one is refused; the jobs of each."""
        grammars = self._compiled(params)
        groups: list[list[Job]] = []
        with self.lock:
            self._check_open()
            for (text, tokens), param, option in zip(prompts, params, options, strict=True):
                if param.spec is not None:
                    option = {**option, "grammar": grammars[param.spec]}
                groups.append([Job(r, text) for r in self.engine.requests.make(tokens, param, **option)])
            self._loop.add({job.request: job.take for group in groups for job in group})
        return groups

    def run(self, job: Job) -> Iterator[str]:
        """The text of a job, piece by piece, until it ends."""
        finished = False
        while not finished:
            with self.lock:
                while self._stopped:
                    self._end(self._stopped.popleft())
                if not job.pieces and not job.finished:
                    self._loop.turn()
                pieces, job.pieces = job.pieces, []
                finished = job.finished
            yield from pieces

    def stop(self, job: Job) -> None:
        """Have a job end before the next step. A signal's handler may call it, and what collects garbage."""
        self._stopped.append(job)

    def drop(self, jobs: Sequence[Job]) -> None:
        """End those jobs that still run. What was held back of their text is lost: their text is the beginning of what
        it would have become.
        """
        with self.lock:
            for job in jobs:
                self._end(job, held=False)

    def close(self) -> None:
        with self.lock:
            if not self._closed:
                self._closed = True
                self._loop.close()

    def _end(self, job: Job, *, held: bool = True) -> None:
        if not job.finished and (last := self._loop.abort(job.request.id)) is not None:
            job.take(last if held else last._replace(text=""))

    def _compiled(self, params: Sequence[SamplingParams]) -> dict[StructuredSpec, Future[Grammar]]:
        """The compiled grammars that `params` want. Raises `RequestError` if one cannot be compiled."""
        found: dict[StructuredSpec, Future[Grammar]] = {}
        waiting: deque[Future[Grammar]] = deque()
        for param in params:
            if param.spec is not None and param.spec not in found:
                with self.lock:
                    self._check_open()
                    found[param.spec] = self._loop.compile(param.spec)
                waiting.append(found[param.spec])
                if len(waiting) > GRAMMARS_AT_ONCE:
                    waiting.popleft().result()
        for future in waiting:
            future.result()
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the LLM is closed")


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
