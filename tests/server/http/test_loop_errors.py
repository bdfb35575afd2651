"""What the event loop reports of itself is one line, and not the same one again and again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inferir.server.http import loop_errors
from inferir.server.http.loop_errors import LoopErrors


def test_the_same_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("inferir"), "propagate", True)
    now = [0.0]
    monkeypatch.setattr(loop_errors.time, "monotonic", lambda: now[0])
    loop = asyncio.new_event_loop()
    report = LoopErrors()
    full = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    with caplog.at_level(logging.WARNING, "inferir.server"):
        for _ in range(2048):
            report(loop, full)
        report(loop, {"message": "another"})
        now[0] = 61.0
        report(loop, full)
    loop.close()
    line = "socket.accept() out of system resource: Too many open files"
    assert [r.getMessage() for r in caplog.records] == [line, "another", line]
