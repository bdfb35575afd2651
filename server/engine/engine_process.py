"""The engine in a process of its own, which `engine_main` starts.

It takes commands between steps and sends one message per step. It ends when the front process does.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import zmq

from inferir.ir.errors import InferirError, QueueFullError, RequestError
from inferir.ir.system.child import die_with_parent
from inferir.runtime.build_engine import build_engine
from inferir.runtime.engine.engine import Engine
from inferir.runtime.engine.engine_loop import EngineLoop
from inferir.runtime.engine.engine_options import EngineOptions
from inferir.runtime.executor.executors import check_target
from inferir.runtime.fresh_memory import FreshMemory
from inferir.runtime.loader import load_artifact
from inferir.runtime.recording.step_observer import NOBODY
from inferir.runtime.recording.step_recorder import RecordLimits, StepRecorder
from inferir.runtime.requests.request import Request, Update
from inferir.runtime.sampling.sampling_params import SamplingParams
from inferir.server.engine import messages as m
from inferir.server.http.process_limits import check_threads

if TYPE_CHECKING:
    from inferir.runtime.structured import Grammar

IDLE_MS = 1000
WARM_UP_BYTES = 4 << 30  # with more weights, a step takes longer than it saves the first request
COMPILERS = ("tvm", "triton", "torch._inductor", "llvmlite")


class EngineProcess:
    """Serves an engine over a socket."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes]) -> None:
        self.engine = engine
        self.loop = EngineLoop(engine)
        self.socket = socket
        self.events: list[m.TokenEvent] = []
        self.compiling: dict[str, list[Request]] = {}
        self.fresh = FreshMemory(engine.executor, engine.kv.pool)
        self.recorder: StepRecorder | None = None
        self.open = True

    def warm_up(self) -> None:
        """Run one request, so that the first real one finds code and weights in memory."""
        if self.engine.capacity < 2:
            return
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        (request,) = self.engine.requests.make([0], params)
        self.loop.add({request: lambda update: None})
        while request.finish_reason is None:
            self.loop.turn()

    def run(self) -> None:
        """Serve until `Shutdown`."""
        while self.open:
            wait = 0 if self.engine.has_unfinished or self.fresh.touch() else IDLE_MS
            while self.open and self.socket.poll(wait):
                self._handle(m.to_engine.decode(self.socket.recv()))
                wait = 0
            if self.open and self.engine.has_unfinished:
                self._step()

    def send(self, message: m.FromEngine) -> None:
        self.socket.send(m.encode(message))

    def stats(self) -> m.Stats:
        stats = self.engine.stats()
        shared = {name: getattr(stats, name) for name in m.Stats.__struct_fields__ if name != "compilers"}
        return m.Stats(**shared, compilers=sum(name in sys.modules for name in COMPILERS))

    def _handle(self, message: m.ToEngine) -> None:
        match message:
            case m.Add():
                self._add(message)
            case m.Abort():
                self.loop.abort(message.id)
                self.send(self.stats())
            case m.Ping():
                self.send(self.stats())
            case m.StartProfile():
                self._start_profile(RecordLimits(message.steps, message.seconds, message.bytes))
            case m.StopProfile():
                self._stop_profile()
            case m.Shutdown():
                self.open = False

    def _start_profile(self, limits: RecordLimits) -> None:
        self.recorder = StepRecorder(self.engine.executor, self.engine.stats, limits)
        self.engine.observer = self.recorder
        self.send(m.Profile())

    def _stop_profile(self) -> None:
        self.engine.observer = NOBODY
        self.send(m.Profile(None if self.recorder is None else self.recorder.finish()))
        self.recorder = None

    def _add(self, message: m.Add) -> None:
        try:
            grammar = None if message.structured is None else self._grammar(message.structured)
            requests = self.engine.requests.make(
                message.prompt,
                SamplingParams.checked(message.params),
                message.id,
                priority=message.priority,
                cache_salt=message.cache_salt,
                grammar=grammar,
            )
            self.loop.add(dict.fromkeys(requests, self._note))
        except InferirError as error:
            self._refuse(message.id, error)
            return
        if grammar is None or (grammar.done() and grammar.exception() is None):
            self.send(m.Accepted(message.id))
        else:
            self.compiling[message.id] = requests

    def _refuse(self, id: str, error: BaseException, *, internal: bool = False) -> None:
        field = error.field if isinstance(error, RequestError) else None
        self.send(m.Refused(id, str(error), field, isinstance(error, QueueFullError), internal))

    def _grammar(self, spec: tuple[str, Any, str]) -> Future[Grammar]:
        """Start to compile a grammar, in a thread. The server has checked what can be checked before."""
        from inferir.runtime.structured import StructuredSpec

        return self.loop.compile(StructuredSpec.checked(*spec))

    def _step(self) -> None:
        self.loop.turn()
        self._settle()
        if self.events:
            self.send(m.Updates(self.events, self.stats()))
            self.events = []

    def _note(self, update: Update) -> None:
        self.events.append(_event(update))

    def _settle(self) -> None:
        """Accept or refuse what waited for its grammar."""
        for name, requests in list(self.compiling.items()):
            grammar = requests[0].grammar
            if grammar is None or grammar.done():
                del self.compiling[name]
                error = None if grammar is None else grammar.exception()
                if error is None:
                    self.send(m.Accepted(name))
                else:
                    self._refuse(name, error, internal=not isinstance(error, RequestError))

    def close(self) -> None:
        self.loop.close()


def _event(update: Update) -> m.TokenEvent:
    request = update.request
    event = m.TokenEvent(
        id=request.id,
        tokens=update.tokens,
        text=update.text,
        finish_reason=update.finish_reason,
        stop_reason=update.stop_reason,
        logprobs=update.logprobs,
        error=request.error,
        internal=request.internal,
    )
    first = 0 < len(request.outputs) == len(update.tokens)
    if first:
        event.queued = request.timing.queue
    if request.prompt_logprobs is not None and (first or not request.outputs):  # an answer may have no token at all
        event.prompt_logprobs = request.prompt_logprobs
    return event


def main(address: str, artifact: str, options: str) -> None:
    """Load the artifact, say so, and serve until `Shutdown`. Raises what ended it otherwise."""
    die_with_parent()
    check_threads()
    context = zmq.Context(io_threads=1)
    socket = m.pair_socket(context)
    socket.connect(address)
    try:
        loaded = load_artifact(artifact, check_target)
        process = EngineProcess(build_engine(loaded, EngineOptions(**json.loads(options))), socket)
        if loaded.manifest.memory.weight_bytes <= WARM_UP_BYTES:
            process.warm_up()
        process.send(m.Ready(process.engine.capacity, process.engine.kv_text))
        process.run()
        process.close()
    finally:
        socket.close()
        context.term()
