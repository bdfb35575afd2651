"""The small HTTP client against servers that use what HTTP/1.1 and event streams allow, byte for byte."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferir.cli.bench_load import complete
from inferir.cli.http_client import Client, HttpError
from inferir.cli.remote_chat import remote_answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
Sends = Callable[..., str]


@pytest.fixture
def sends() -> Iterator[Sends]:
    """Serve connections that each get the next of some answers, cut into the pieces given. Returns the address."""
    listeners: list[socket.socket] = []

    def start(*answers: bytes | list[bytes]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += connection.recv(1 << 16)
                    for piece in [answer] if isinstance(answer, bytes) else answer:
                        connection.sendall(piece)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def event(text: str | None = None, finish: str | None = None) -> str:
    delta = {} if text is None else {"content": text}
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"


def chunked(text: str, size: int = 7) -> bytes:
    """A body in chunks, each with an extension, and trailers."""
    raw, out = text.encode(), b""
    for start in range(0, len(raw), size):
        piece = raw[start : start + size]
        out += b'%x ; name="a;b"\r\n%s\r\n' % (len(piece), piece)
    return out + b"0;last\r\nx-trailer: yes\r\nx-other: no\r\n\r\n"


def said(url: str) -> str:
    return remote_answer(Client(url), {"model": "m"}, [{"role": "user", "content": "hi"}], lambda text: None).text


STREAM = event("Hel") + event("lo") + event(None, "stop")
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    "stream",
    [
        STREAM + DONE,
        "\ufeff" + STREAM + DONE,
        (STREAM + DONE).replace("\n", "\r\n"),
        (STREAM + DONE).replace("\n", "\r"),
        STREAM.replace("data: {", "data: {\ndata: ") + DONE,
        ": keep-alive\n\n" + STREAM.replace("\n\n", "\n\n: ping\n\ndata:\n\nid: 7\nretry: 5\n\n") + DONE,
        "event: ping\ndata: pong\n\nevent: ping\ndata: {}\n\n" + STREAM + DONE,
        'data: null\n\ndata: 5\n\ndata: []\n\ndata: "x"\n\ndata: {"choices": null}\n\n' + STREAM + DONE,
        'data: {"choices": [], "usage": null}\n\n' + STREAM + 'data: {"usage": {}}\n\n' + DONE,
        'data: {"choices": [{"delta": null}]}\n\ndata: {"choices": [{}], "error": null}\n\n' + STREAM + DONE,
        'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "x", "content": null}}]}\n\n' + STREAM + DONE,
        'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}\n\n' + STREAM + DONE,
        'data: {"choices": [{"index": 1, "delta": {"content": "other"}}]}\n\n' + STREAM + DONE,
        STREAM + DONE + "data: {",
        STREAM + "data: [DONE]",
        STREAM,
    ],
    ids=range(16),
)
def test_streams_of_other_servers(sends: Sends, stream: str) -> None:
    answers = [HEAD + b"\r\n" + stream.encode(), HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(stream)]
    url = sends(*answers)
    assert [said(url), said(url)] == ["Hello", "Hello"]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD,
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + HEAD,
        b"HTTP/1.1 200\r\n",
        b"HTTP/1.1 200 OK\r\nx-folded: a\r\n  b\r\nx-twice: 1\r\nx-twice: 2\r\n",
        b"HTTP/1.0 200 OK\nserver: old\n",
    ],
    ids=range(5),
)
def test_heads(sends: Sends, head: bytes) -> None:
    assert said(sends([head, b"\r\n" + (STREAM + DONE).encode()])) == "Hello"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HEAD + b"\r\n" + event("Hel").encode(), r"without \[DONE\]"),
        (HEAD + b"content-length: 900\r\n\r\n" + (STREAM + DONE[:9]).encode(), "broke off"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(STREAM)[:40], "broke off"),
        (HEAD + b"content-encoding: gzip\r\n\r\n\x1f\x8b", "not HTTP"),
        (HEAD + b"\r\nevent: error\ndata: it failed\n\n", "it failed"),
        (HEAD + b'\r\nevent: error\ndata: {"message": "it failed"}\n\n', "it failed"),
        (HEAD + b"\r\ndata: {\n\n", "no part of a chat"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 200 + HEAD + b"\r\n", "not HTTP"),
        (b"SSH-2.0-x\r\n", "not HTTP"),
        (b"", "broke off"),
        (b"HTTP/1.1 200 OK\r\n", "broke off"),
    ],
    ids=range(11),
)
def test_what_is_no_answer(sends: Sends, answer: bytes, error: str) -> None:
    with pytest.raises(HttpError, match=error):
        said(sends(answer))


def test_a_completion_between_other_events(sends: Sends) -> None:
    """The client of the benchmark reads streams in the same way."""
    events: list[Any] = [
        {"choices": None},
        {"choices": [{"index": 0, "text": "a"}]},
        {"id": "x"},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    ]
    stream = ": hello\r\n\r\n" + "".join(f"id: 1\r\ndata: {json.dumps(e)}\r\n\r\n" for e in events) + DONE
    url = sends(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"transfer-encoding: Chunked\r\n\r\n" + chunked(stream))
    record = asyncio.run(complete(Client(url), {"prompt": "x"}))
    assert (record.error, record.prompt_tokens, record.usage, len(record.tokens)) == (None, 3, 1, 1)
