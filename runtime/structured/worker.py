"""The process that compiles grammars: `python -m inferir.runtime.structured.worker`, spoken to through its pipes.

A hostile grammar can take any time and memory inside the compiled core, or crash it, and nothing in a process can stop
that; so it happens here. A timer of the system ends the process with a job that takes too long, also when nobody waits
any more, and its address space may grow by so much only.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from inferir.runtime.structured import binding
from inferir.runtime.structured.build import Job, Result, build
from inferir.runtime.structured.vocabulary import Vocabulary

NICE = 5
_LENGTH = struct.Struct("<Q")


class Setup(msgspec.Struct, frozen=True):
    """First message: the vocabulary, and what a job may take."""

    vocabulary: Vocabulary
    seconds: float
    memory_bytes: int


def send(stream: BinaryIO, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the parent, which closes our input
    os.nice(NICE)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the core prints does not get between the messages
    first = receive(source)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    core = binding.load()
    info = core.tokenizer_info(setup.vocabulary.tokens, setup.vocabulary.stop_ids)
    _limit_memory(setup.memory_bytes)
    send(sink, Result())
    while (data := receive(source)) is not None:
        job = msgspec.msgpack.decode(data, type=Job)
        signal.setitimer(signal.ITIMER_REAL, setup.seconds)  # its signal ends the process
        result = build(core, info, setup.vocabulary, job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(sink, result)


def _limit_memory(growth: int) -> None:
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + growth if hard == resource.RLIM_INFINITY else min(now + growth, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
