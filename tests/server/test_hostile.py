"""Clients that want to reach files or other servers, or to exhaust this one."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server


@pytest.fixture
def canary() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this machine and what arrives there."""
    seen: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                seen.append(connection.recv(100))
                connection.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1], seen
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_nothing_is_fetched(server: Server, canary: tuple[int, list[bytes]]) -> None:
    port, seen = canary
    links = [
        f"http://127.0.0.1:{port}/x.png",
        f"http://[::1]:{port}/",
        "file:///etc/passwd",
        "data:image/png;base64,AA",
    ]
    for link in links:
        for part in ({"type": "image_url", "image_url": {"url": link}}, {"type": "image_url", "image_url": link}):
            answer = server.talk({"role": "user", "content": [{"type": "text", "text": "x"}, part]})
            assert answer.status_code == 400
            assert "image_url" in answer.json()["error"]["message"]
    for ref in (f"http://127.0.0.1:{port}/schema.json", "file:///etc/passwd"):
        for schema in (
            {"$ref": ref},
            {"properties": {"a": {"$ref": ref}}},
            {"$schema": ref, "$id": ref, "type": "null"},
        ):
            answer = server.complete(structured_outputs={"json": schema})
            assert answer.status_code == (200 if "$id" in schema else 400), answer.text
    large = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (50 << 20)}}
    assert server.talk({"role": "user", "content": [large]}).status_code in (400, 413)
    assert seen == []


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_embeddings_are_not_read(server: Server, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    data = base64.b64encode(pickle.dumps(Payload(marker))).decode()
    for value in (data, [data], [[0.5] * 7], [[None]], "AAAA"):
        for prompt in ("x", None):
            answer = server.complete(prompt=prompt, prompt_embeds=value)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "prompt_embeds"
    assert not marker.exists()


@pytest.mark.parametrize("path", ["../x", "/etc", "file:///etc", "a/b", "link"])
def test_adapters_are_not_loaded(server: Server, path: str) -> None:
    for route in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert server.post(route, {"lora_name": path, "lora_path": path}).status_code == 404
    assert server.complete(model=path).status_code == 404


# --- floods -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def healthy(server: Server) -> Iterator[None]:
    """The server says that it is alive, again and again during the test."""
    over = threading.Event()
    answers: list[int] = []

    def check() -> None:
        while not over.is_set():
            answers.append(server.get("/health").status_code)
            time.sleep(0.01)

    thread = threading.Thread(target=check)
    thread.start()
    yield
    over.set()
    thread.join()
    assert set(answers) == {200}


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def send_all(connection: socket.socket, size: int) -> int:
    """Send `size` bytes, or as many as are taken before the connection ends."""
    sent, part = 0, b"x" * (1 << 20)
    with contextlib.suppress(OSError):
        while sent < size:
            connection.sendall(part)
            sent += len(part)
    return sent


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    "body",
    [
        {"n": 100_000},
        {"best_of": 10**6},
        {"n": 128, "prompt": ["x"] * 9},
        {"stop": [f"s{i}" for i in range(100_000)]},
        {"prompt": ["x"] * 100_000},
        {"prompt": [[1]] * 100_000},
        {"prompt": [1] * 1_000_000},
        {"bad_words": [f"w{i}" for i in range(100_000)]},
        {"logit_bias": {str(i): 1 for i in range(100_000)}},
        {"allowed_token_ids": [10**6] * 1_000_000},
        {"prompt": "x" * (7 << 20)},
        {"prompt": ["x" * (1 << 20)] * 7},
    ],
    ids=lambda body: "-".join(body),
)
def test_huge_values(server: Server, body: dict[str, Any]) -> None:
    answer = server.complete(**body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in body


@pytest.mark.usefixtures("healthy")
def test_long_texts(server: Server) -> None:
    """What cannot fit is not tokenized; what must be is tokenized beside everything else."""
    answer = server.talk({"role": "user", "content": "x" * (7 << 20)})
    assert answer.status_code == 400
    assert "at least" in answer.json()["error"]["message"]
    assert server.post("/tokenize", {"prompt": "x" * (1 << 20)}).json()["count"] == 1 << 20
    assert server.complete(prompt="x" * (1 << 20), truncate_prompt_tokens=5).json()["usage"]["prompt_tokens"] == 5


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("encoding", ["content-length: 209715200", "transfer-encoding: chunked"])
def test_a_body_of_200_megabytes(server: Server, encoding: str) -> None:
    """It is refused after the limit at the latest, and the rest is not read."""
    with connect(server) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{encoding}\r\n\r\n"
        connection.sendall(head.encode() + (b"C800000\r\n" if "chunked" in encoding else b""))
        assert send_all(connection, 200 << 20) < 100 << 20
        answer = b""
        with contextlib.suppress(OSError):
            answer = connection.recv(1000)
    assert answer == b"" or b" 413 " in answer.splitlines()[0]
    assert server.complete().status_code == 200


@pytest.mark.usefixtures("healthy")
def test_deep_nesting_and_large_headers(server: Server) -> None:
    deep = '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for text in (deep, '{"prompt": "x", "structured_outputs": {"json": ' + '{"a":' * 100_000 + "1" + "}" * 100_002):
        answer = server.http.post("/v1/completions", content=text, headers={"content-type": "application/json"})
        assert answer.status_code == 400
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nlarge: ")
        assert send_all(connection, 10 << 20) < 10 << 20
        answer = b""
        with contextlib.suppress(OSError):
            answer = connection.recv(1000)
        assert answer == b"" or b" 4" in answer.splitlines()[0]


def test_clients_that_leave_within_the_body(server: Server) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    for i in range(10):
        with connect(server) as connection:
            connection.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
            time.sleep(0.01 * i)
    assert server.complete().status_code == 200
    time.sleep(0.2)
    assert not any("Traceback" in line for line in server.lines())


@pytest.mark.usefixtures("healthy")
def test_a_hundred_slow_clients(server: Server) -> None:
    """They send a byte now and then, some within the headers and some within the body; others are served meanwhile."""
    body = json.dumps({"prompt": "x"})
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(100)]
        for i, connection in enumerate(slow):
            connection.sendall(head.encode() if i % 2 else f"{head}content-length: {len(body)}\r\n\r\n{{".encode())
        for part in range(5):
            for i, connection in enumerate(slow):
                connection.sendall(b"x" if i % 2 else body[part + 1 : part + 2].encode())
            assert server.complete().status_code == 200
        answer = server.complete()
        assert answer.status_code == 200
    server.idle()
