"""The engine in a process of its own: `python -m inferir.server.engine_process SOCKET ARTIFACT OPTIONS`.

It takes commands between steps and sends one message per step. It ends when the front process does.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

import zmq

from inferir.ir.errors import InferirError, RequestError
from inferir.runtime.build import load_engine
from inferir.runtime.engine import Engine, Update
from inferir.runtime.options import EngineOptions
from inferir.runtime.request import Request, Status
from inferir.runtime.sampling import SamplingParams
from inferir.server import messages as m

IDLE_MS = 1000
COMPILERS = ("tvm", "triton", "torch._inductor", "llvmlite")
PARENT = "INFERIR_PARENT_PID"  # set by the front process, for this process only
LINGER_MS = 500
_PR_SET_PDEATHSIG = 1


class EngineProcess:
    """Serves an engine over a socket."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes]) -> None:
        self.engine = engine
        self.socket = socket
        self.queued: dict[str, Request] = {}
        self.waited: dict[str, float] = {}
        self.open = True

    def warm_up(self) -> None:
        """Run one request, so that the first real one finds code and weights in memory."""
        if self.engine.capacity < 2:
            return
        request = self.engine.add_request([0], SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
        while request.finish_reason is None:
            self.engine.step()

    def run(self) -> None:
        """Serve until `Shutdown`."""
        while self.open:
            wait = 0 if self.engine.has_unfinished else IDLE_MS
            while self.open and self.socket.poll(wait):
                self._handle(m.to_engine.decode(self.socket.recv()))
                wait = 0
            if self.open and self.engine.has_unfinished:
                self._step()

    def send(self, message: m.FromEngine) -> None:
        self.socket.send(m.encode(message))

    def stats(self) -> m.Stats:
        scheduler, pool = self.engine.scheduler, self.engine.kv.pool
        return m.Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage=pool.usage,
            preemptions=scheduler.num_preemptions,
            compilers=sum(name in sys.modules for name in COMPILERS),
        )

    def _handle(self, message: m.ToEngine) -> None:
        match message:
            case m.Add():
                self._add(message)
            case m.Abort():
                self.queued.pop(message.id, None)
                self.waited.pop(message.id, None)
                self.engine.abort(message.id)
                self.send(self.stats())
            case m.Ping():
                self.send(self.stats())
            case m.Shutdown():
                self.open = False

    def _add(self, message: m.Add) -> None:
        try:
            request = self.engine.add_request(message.prompt, SamplingParams.parse(message.params), message.id)
        except InferirError as error:
            field = error.field if isinstance(error, RequestError) else None
            self.send(m.Refused(message.id, str(error), field))
            return
        self.queued[message.id] = request
        self.send(m.Accepted(message.id))

    def _step(self) -> None:
        started = time.monotonic()
        updates = self.engine.step()
        for request in [r for r in self.queued.values() if r.status is not Status.WAITING]:
            del self.queued[request.id]
            self.waited[request.id] = max(0.0, started - request.arrival)
        events = [self._event(u) for u in updates]
        self.send(m.Updates(events, self.stats()))

    def _event(self, update: Update) -> m.TokenEvent:
        return m.TokenEvent(
            id=update.request.id,
            token=update.token,
            text=update.text,
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
            queued=self.waited.pop(update.request.id, None),
        )


def main(arguments: list[str]) -> int:
    """Load the artifact, say so, and serve. Returns the exit status."""
    address, artifact, options = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the front process decides
    die_with_parent(int(os.environ.pop(PARENT)))
    context = zmq.Context(io_threads=1)
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(address)
    try:
        process = EngineProcess(load_engine(artifact, EngineOptions(**json.loads(options))), socket)
        process.warm_up()
        process.send(m.Ready(process.engine.capacity))
        process.run()
        process.engine.close()
        return 0
    except InferirError as error:
        socket.send(m.encode(m.Failed(str(error), error.exit_code)))
        return error.exit_code
    finally:
        socket.close()
        context.term()


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when process `parent`, which started it, ends in any way."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
