"""Messages between the front process and the engine process, as msgspec arrays: no pickle anywhere."""

from __future__ import annotations

from typing import Any

import msgspec


class Add(msgspec.Struct, array_like=True, tag=True):
    """Serve a prompt of token ids; `params` are fields of `SamplingParams`."""

    id: str
    prompt: list[int]
    params: dict[str, Any]


class Abort(msgspec.Struct, array_like=True, tag=True):
    """Forget a request. Nothing is answered."""

    id: str


class Ping(msgspec.Struct, array_like=True, tag=True):
    """Ask for `Stats`."""


class Shutdown(msgspec.Struct, array_like=True, tag=True):
    """End the process."""


class Ready(msgspec.Struct, array_like=True, tag=True):
    """The artifact is loaded and a first step has run; `capacity` bounds the tokens of a request."""

    capacity: int


class Failed(msgspec.Struct, array_like=True, tag=True):
    """The engine cannot start, or cannot go on: the process ends with this message."""

    message: str
    exit_code: int


class Accepted(msgspec.Struct, array_like=True, tag=True):
    id: str


class Refused(msgspec.Struct, array_like=True, tag=True):
    """The engine does not take a request; `busy` if it may take it later."""

    id: str
    message: str
    field: str | None
    busy: bool = False


class TokenEvent(msgspec.Struct, array_like=True):
    """One `Update` of the engine. `queued`: seconds spent waiting, with a request's first event only."""

    id: str
    token: int | None
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    queued: float | None = None


class Stats(msgspec.Struct, array_like=True, tag=True):
    """State of the engine. Counts are since the start of its process. `compilers`: compiler libraries loaded in it."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    compilers: int = 0


class Updates(msgspec.Struct, array_like=True, tag=True):
    """What one step brought."""

    events: list[TokenEvent]
    stats: Stats


ToEngine = Add | Abort | Ping | Shutdown
FromEngine = Ready | Failed | Accepted | Refused | Updates | Stats

to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
encode = msgspec.msgpack.Encoder().encode
