"""Server-sent events are read by the standard's rules, however the bytes are cut."""

from __future__ import annotations

import pytest

from inferir.cli.event_stream import EventReader, ServerEvent

CASES: list[tuple[bytes, list[tuple[str, str]]]] = [
    (b"data: a\n\ndata: b\n\n", [("message", "a"), ("message", "b")]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [("message", "a"), ("message", "b")]),
    (b"data: a\r\rdata: b\r\r", [("message", "a"), ("message", "b")]),
    (b"data: a\r\n\ndata: b\n\r\n", [("message", "a"), ("message", "b")]),
    (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
    (b": a comment\n\n:\n\ndata: a\n\n: ping\n\n", [("message", "a")]),
    (b"id: 5\nretry: 10\ndata: a\nunknown: x\nnothing\n\n", [("message", "a")]),
    (b"event: ping\n\nevent: error\ndata: a\n\ndata: b\n\n", [("error", "a"), ("message", "b")]),
    (b'data: {\ndata:  "a": 1\ndata:}\n\n', [("message", '{\n "a": 1\n}')]),
    (b"data:a\n\ndata\n\ndata:\n\ndata:  b\n\n", [("message", "a"), ("message", " b")]),
    ("data: é世\n\n".encode(), [("message", "é世")]),
    (b"data: half", []),
]


@pytest.mark.parametrize(("stream", "wanted"), CASES, ids=range(len(CASES)))
def test_events(stream: bytes, wanted: list[tuple[str, str]]) -> None:
    whole = [ServerEvent(*event) for event in wanted]
    assert EventReader().feed(stream) == whole
    for size in (1, 2, 3):
        reader = EventReader()
        found: list[ServerEvent] = []
        for start in range(0, len(stream), size):
            found += reader.feed(stream[start : start + size])
        assert found == whole


def test_the_end_of_a_stream() -> None:
    reader = EventReader()
    assert reader.feed(b"data: [DONE]") == []
    assert reader.close() == ServerEvent("message", "[DONE]")
    assert EventReader().close() is None
