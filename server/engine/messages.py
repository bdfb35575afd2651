"""Messages between the front process and the engine process, as msgspec arrays: no pickle anywhere."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from inferir.runtime.recording.recorded_steps import Recording
from inferir.runtime.sampling.token_logprobs import TokenLogprobs


class Add(msgspec.Struct, array_like=True, tag=True):
    """Serve a prompt of token ids; `params` are the `fields` of checked `SamplingParams`.

    The requests of its n answers have the ids of `request_ids`. structured: kind, value and source of the checked
    `StructuredSpec` that the text must follow.
    """

    id: str
    prompt: list[int]
    params: dict[str, Any]
    priority: int = 0
    cache_salt: str | None = None
    structured: tuple[str, Any, str] | None = None


class Abort(msgspec.Struct, array_like=True, tag=True):
    """Forget a request. Nothing is answered."""

    id: str


class Ping(msgspec.Struct, array_like=True, tag=True):
    """Ask for `Stats`."""


class StartProfile(msgspec.Struct, array_like=True, tag=True):
    """Record steps, at most so many, for so long and of so many bytes. `Profile` without a recording answers."""

    steps: int
    seconds: float
    bytes: int


class StopProfile(msgspec.Struct, array_like=True, tag=True):
    """Record no longer. `Profile` with the recording answers, or without one if there is none."""


class Shutdown(msgspec.Struct, array_like=True, tag=True):
    """End the process."""


class Ready(msgspec.Struct, array_like=True, tag=True):
    """The artifact is loaded and a first step has run; `capacity` bounds the tokens of a request. kv: the cache, for
    people.
    """

    capacity: int
    kv: str


class Failed(msgspec.Struct, array_like=True):
    """Why the engine process ends, as JSON in a pipe of its own: it may fail before it has any socket.

    final: another process would fail the same way.
    """

    message: str
    exit_code: int
    final: bool


class Accepted(msgspec.Struct, array_like=True, tag=True):
    """The engine serves the requests of an `Add`."""

    id: str


class Refused(msgspec.Struct, array_like=True, tag=True):
    """The engine does not take an `Add`; `busy` if it may later, `internal` if that is no fault of the `Add`."""

    id: str
    message: str
    field: str | None
    busy: bool = False
    internal: bool = False


class TokenEvent(msgspec.Struct, array_like=True):
    """One `Update` of the engine.

    With a request's first tokens come `queued`, the seconds it waited, and `prompt_logprobs` if it wants them.
    error, internal: why it failed, if finish_reason is "error", and whether that is no fault of the request.
    """

    id: str
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    queued: float | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None
    internal: bool = False


class Stats(msgspec.Struct, array_like=True, tag=True):
    """State of the engine. Counts are since the start of its process. `compilers`: compiler libraries loaded in it."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_bytes_used: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    computed_tokens: int = 0
    compilers: int = 0


class Updates(msgspec.Struct, array_like=True, tag=True):
    """What one step brought."""

    events: list[TokenEvent]
    stats: Stats


class Profile(msgspec.Struct, array_like=True, tag=True):
    """The answer to `StartProfile` and `StopProfile`."""

    recording: Recording | None = None


ToEngine = Add | Abort | Ping | StartProfile | StopProfile | Shutdown
FromEngine = Ready | Accepted | Refused | Updates | Stats | Profile

to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)


def request_ids(id: str, n: int) -> list[str]:
    """Ids of the requests of an `Add`, as the engine names them."""
    return [id] if n == 1 else [f"{id}-{k}" for k in range(n)]


encode = msgspec.msgpack.Encoder().encode


def pair_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """An end of the connection: no message is dropped, and those under way when a process ends get half a second."""
    socket = context.socket(zmq.PAIR)
    for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, 500)):
        socket.setsockopt(option, value)
    return socket
