"""The front process's side of the engine: starts it, watches it, starts it again, and routes what it sends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import zmq

from inferir.ir.errors import EngineError, InferirError
from inferir.ir.system.child import child_environment
from inferir.ir.system.error_report import describe
from inferir.ir.system.held_folder import HeldFolder
from inferir.ir.system.log_levels import VARIABLE as LOG_VARIABLE
from inferir.ir.system.log_levels import levels_text
from inferir.server.engine import messages as m
from inferir.server.engine.engine_link import EngineLink
from inferir.server.engine.profiling import Profiling
from inferir.server.engine.socket_folder import make_socket_folder
from inferir.server.http.http_errors import ApiError, engine_died, not_ready

if TYPE_CHECKING:
    from inferir.server.engine.prometheus_metrics import Metrics

BACKOFF = (0.0, 0.5, 1.0, 2.0, 4.0)  # seconds before each restart; after the last one fails, the server gives up
PING_SECONDS = 1.0
WATCH_SECONDS = 0.05  # between two looks at the engine process
SILENT_SECONDS = 15.0  # an engine that says nothing for so long is not ready

_CONSTRAINTS = ("allowed_token_ids", "bad_words", "min_tokens")

log = logging.getLogger("inferir.server")

Inbox = asyncio.Queue[tuple[int, m.TokenEvent | ApiError]]


@dataclass(eq=False)
class Job:
    """A request in the engine: `inbox` gets `(index, event)`, or the error that ended it.

    constrained: only some tokens may be drawn, so that running out of them is the request's own fault.
    """

    id: str
    index: int
    inbox: Inbox
    prompt_tokens: int = 0
    constrained: bool = False
    finished: bool = False
    arrival: float = field(default_factory=time.monotonic)
    first: float = 0.0
    last: float = 0.0
    queued: float = 0.0
    tokens: int = 0


@dataclass
class EngineProcessHandle:
    """A started child with the socket that leads to it, and the pipe in which it says why it ends."""

    child: subprocess.Popen[bytes]
    link: EngineLink
    folder: HeldFolder
    last_words: IO[bytes]

    def failure(self) -> m.Failed | None:
        """What the child, which has ended, said of the reason."""
        with contextlib.suppress(msgspec.DecodeError, OSError):
            return msgspec.json.decode(self.last_words.read() or b"", type=m.Failed)
        return None

    def close(self, *, kill: bool) -> None:
        """End the child and leave nothing of it behind."""
        if kill and self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.link.close()
        self.last_words.close()
        self.folder.remove()


def start_child(
    artifact: Path,
    options: Mapping[str, Any],
    context: zmq.Context[zmq.Socket[bytes]],
    receive: Callable[[bytes], None],
) -> EngineProcessHandle:
    """Bind a socket in a private folder and start an engine process that connects to it and says what to `receive`."""
    folder = make_socket_folder()
    address = f"ipc://{folder.path}/engine"
    link = EngineLink(context, address, receive)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    command = [sys.executable, "-P", "-m", "inferir.server.engine.engine_main", str(writing)]
    command += [address, str(artifact), json.dumps(options)]
    # Signals that end the server reach a whole terminal or service; the child inherits that they are blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        environment = {**child_environment(), LOG_VARIABLE: levels_text()}
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[writing])
    except OSError:
        os.close(reading)
        link.close()
        folder.remove()
        raise
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return EngineProcessHandle(child, link, folder, open(reading, "rb", buffering=0))


@dataclass
class EngineClient:
    """One engine process at a time.

    `phase` is "loading" until the first one is ready, "ready", "restarting" after one died, "failed" when no restart
    helps, and "stopped". `failure` is then the reason. `profiling` records steps.
    """

    artifact: Path
    options: Mapping[str, Any]
    observer: Metrics | None = None
    phase: str = "loading"
    failure: InferirError | None = None
    stats: m.Stats = field(default_factory=m.Stats)
    capacity: int = 0
    kv: str = ""
    restarts: int = 0

    def __post_init__(self) -> None:
        self._adding: dict[str, asyncio.Future[None]] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._jobs: dict[str, Job] = {}
        self._ids = itertools.count()
        self._handle: EngineProcessHandle | None = None
        self._heard = time.monotonic()
        self._changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self.profiling = Profiling(self._send)

    @property
    def responsive(self) -> bool:
        """Whether the engine is ready and has spoken lately."""
        return self.phase == "ready" and time.monotonic() - self._heard < SILENT_SECONDS

    @property
    def unfinished(self) -> int:
        """Requests that were added and have not ended."""
        return len(self._jobs)

    @property
    def pid(self) -> int | None:
        return None if self._handle is None else self._handle.child.pid

    def start(self) -> None:
        """Start the engine process and watch it; call once, in the loop's thread."""
        self._handle = start_child(self.artifact, self.options, self._context, self._receive)
        self._supervisor = asyncio.create_task(self._supervise())

    async def wait_failed(self) -> InferirError:
        """Wait until no engine will come any more."""
        while self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        return self.failure

    async def add(self, message: m.Add, first: int, inbox: Inbox) -> list[Job]:
        """Give the n answers of `message`, whose id is set here, to the engine; they are number `first` … in `inbox`.

        Raises `ApiError` if they are refused, or no engine is there.
        """
        if self.phase != "ready":
            raise not_ready(self.phase)
        message.id = f"r{next(self._ids)}"
        names = m.request_ids(message.id, message.params.get("n") or 1)
        constrained = message.structured is not None or any(message.params.get(name) for name in _CONSTRAINTS)
        jobs = [Job(name, first + k, inbox, len(message.prompt), constrained) for k, name in enumerate(names)]
        self._jobs |= {job.id: job for job in jobs}
        accepted = self._adding[message.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            await accepted
        except BaseException as error:
            refused = isinstance(error, ApiError)
            if isinstance(error, ApiError) and error.status == 429 and self.observer is not None:
                self.observer.refused(len(jobs))
            for job in jobs:
                job.finished |= refused
                await self.abort(job)
            if isinstance(error, EngineError):
                raise engine_died() from None
            raise
        finally:
            self._adding.pop(message.id, None)
        return jobs

    async def abort(self, job: Job) -> None:
        """Forget a request; the engine stops it if it still runs."""
        self._jobs.pop(job.id, None)
        if not job.finished:
            job.finished = True
            if self.observer is not None:
                self.observer.aborted()
            with contextlib.suppress(EngineError):
                self._send(m.Abort(job.id))

    def fail_all(self, error: ApiError) -> None:
        jobs, self._jobs = self._jobs, {}
        for accepted in self._adding.values():
            if not accepted.done():
                accepted.set_exception(error)
        for job in jobs.values():
            job.inbox.put_nowait((job.index, error))

    async def stop(self) -> None:
        """End the engine process: by a message, and by force if it does not listen."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._handle is not None:
            with contextlib.suppress(EngineError):
                if self.phase == "ready":
                    self._send(m.Shutdown())
                    for _ in range(40):
                        if self._handle.child.poll() is not None:
                            break
                        await asyncio.sleep(0.025)
            self._handle.close(kill=True)
        self.phase = "stopped"
        self._context.destroy(linger=0)

    def _send(self, message: m.ToEngine) -> None:
        if self._handle is None:
            raise EngineError("the engine process is not running")
        self._handle.link.send(m.encode(message))

    async def _supervise(self) -> None:
        """Serve one child after the other, until one cannot be started."""
        attempt = 0
        while True:
            assert self._handle is not None
            failed = await self._serve(self._handle)
            was_ready = self.phase == "ready"
            status = self._handle.child.poll()
            self.phase = "restarting" if was_ready or self.restarts else self.phase
            self._set_stats(m.Stats())
            self.fail_all(engine_died())
            self.profiling.lost()
            self._handle.close(kill=True)
            attempt = 0 if was_ready else attempt + 1
            final = self.restarts == 0 or (failed is not None and failed.final)
            if not was_ready and (final or attempt >= len(BACKOFF)):
                text = failed.message if failed else f"the engine process ended with status {status} while loading"
                self._give_up(text, failed.exit_code if failed else 1)
                return
            reason = failed.message if failed else f"status {status}"
            log.error("the engine process ended: %s; starting it again", reason)
            self.restarts += 1
            await asyncio.sleep(BACKOFF[attempt])
            while (problem := self._start_again()) is not None:
                attempt += 1
                if attempt >= len(BACKOFF):
                    self._give_up(f"the engine process cannot be started again: {problem}", 1)
                    return
                await asyncio.sleep(BACKOFF[attempt])

    def _start_again(self) -> str | None:
        """Start another child; why that failed, if the system refused it."""
        try:
            self._handle = start_child(self.artifact, self.options, self._context, self._receive)
        except (OSError, zmq.ZMQError, EngineError) as error:
            reason, _ = describe(error)
            log.error("the engine process cannot be started: %s", reason)
            return reason
        return None

    def _give_up(self, message: str, exit_code: int) -> None:
        self.failure = EngineError(message)
        self.failure.exit_code = exit_code
        self.phase = "failed"
        self._changed.set()

    async def _serve(self, handle: EngineProcessHandle) -> m.Failed | None:
        """Wait until the child ends; what it said of the reason, if it knew."""
        last_ping = 0.0
        while handle.child.poll() is None:
            if time.monotonic() - last_ping > PING_SECONDS and self.phase == "ready":
                last_ping = time.monotonic()
                with contextlib.suppress(EngineError):
                    self._send(m.Ping())
            await asyncio.sleep(WATCH_SECONDS)
        handle.link.read()  # what it sent before
        return handle.failure()

    def _receive(self, data: bytes) -> None:
        """Route a message of the engine."""
        self._heard = time.monotonic()
        assert self._handle is not None
        match message := m.from_engine.decode(data):
            case m.Updates():
                self._set_stats(message.stats)
                for event in message.events:
                    self._deliver(event)
            case m.Stats():
                self._set_stats(message)
            case m.Accepted() | m.Refused():
                accepted = self._adding.get(message.id)
                if accepted is None or accepted.done():
                    return
                if isinstance(message, m.Refused):
                    accepted.set_exception(refused(message))
                else:
                    accepted.set_result(None)
            case m.Profile():
                self.profiling.received(message.recording)
            case m.Ready():
                self._handle.folder.remove()  # both ends are connected
                self.capacity, self.kv = message.capacity, message.kv
                self.phase = "ready"
                log.info("engine process %d is ready: %s", self._handle.child.pid, message.kv)

    def _set_stats(self, stats: m.Stats) -> None:
        self.stats = stats
        if self.observer is not None:
            self.observer.observe_stats(stats)

    def _deliver(self, event: m.TokenEvent) -> None:
        job = self._jobs.get(event.id)
        if job is None:
            return
        if event.finish_reason is not None:
            job.finished = True
            del self._jobs[event.id]
        if self.observer is not None:
            self.observer.observe(job, event)
        if event.finish_reason == "error":
            status = 400 if job.constrained and not event.internal else 500
            job.inbox.put_nowait((job.index, ApiError(status, event.error or "the request failed")))
        else:
            job.inbox.put_nowait((job.index, event))


def refused(refusal: m.Refused) -> ApiError:
    """The error that tells a client why the engine did not take its request."""
    if refusal.busy:
        return ApiError(429, refusal.message, code="queue_full", headers={"retry-after": "1"})
    return ApiError(500 if refusal.internal else 400, refusal.message, refusal.field)
