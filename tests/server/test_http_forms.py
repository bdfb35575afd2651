"""Requests in every form that HTTP/1.1 allows, over raw sockets: targets, methods, framing, encodings."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from serving import Server

BODY = json.dumps({"prompt": "hi", "max_tokens": 2, "temperature": 0}).encode()
JSON = "content-type: application/json"


@pytest.fixture(scope="module")
def locked(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key and with names that need quoting."""
    names = ("--served-model-name", "org/tiny model", "--served-model-name", "tiny:é")
    server = Server(tiny_artifact, tmp_path_factory.mktemp("locked") / "log", "--api-key", "k", *names)
    try:
        yield server.ready()
    finally:
        server.close()


def exchange(server: Server, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request, which asks for the connection to be closed.

    Interim answers are passed over.
    """
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), 20) as connection:
        for piece in pieces:
            connection.sendall(piece)
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    while data.startswith(b"HTTP/1.1 1"):
        data = data.partition(b"\r\n\r\n")[2]
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, body


def request(target: str, method: str = "GET", *headers: str, body: bytes = b"", version: str = "1.1") -> bytes:
    length = [f"content-length: {len(body)}"] if body else []
    lines = [f"{method} {target} HTTP/{version}", "host: x", "connection: close", *length, *headers, "", ""]
    return "\r\n".join(lines).encode() + body


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/models", 200),
        ("/v1/models?", 200),
        ("/v1/models?limit=5", 200),
        ("/v1/%6dodels", 200),
        ("http://127.0.0.1:1/v1/models", 200),
        ("http://x/v1/models?a=b", 200),
        ("HTTPS://user@other.example/v1/%6Dodels?", 200),
        ("http://x", 200),
        ("http://x?a", 200),
        ("http://x/health", 200),
        ("http://x/v1/nothing", 404),
        ("ftp://x/v1/models", 404),
        ("//v1/models", 404),
        ("/v1//models", 404),
        ("/v1/models/", 404),
        ("/v1/%ff", 404),
        ("/v1/%zz", 404),
        ("*", 404),
    ],
)
def test_targets(server: Server, target: str, status: int) -> None:
    assert exchange(server, request(target))[0] == status
    assert exchange(server, request(target, "HEAD"))[::2] == (status, b"")


def test_posts_to_whole_addresses(server: Server) -> None:
    plain = exchange(server, request("/v1/completions", "POST", JSON, body=BODY))
    proxied = exchange(server, request("http://proxy:80/v1/completions", "POST", JSON, body=BODY))
    assert plain[0] == proxied[0] == 200
    assert json.loads(plain[2])["choices"] == json.loads(proxied[2])["choices"]


def test_options(server: Server, locked: Server) -> None:
    for target in ("*", "http://x"):
        for where in (server, locked):
            status, headers, body = exchange(where, request(target, "OPTIONS"))
            assert (status, body) == (204, b"")
            assert "POST" in headers["allow"]
    status, headers, _ = exchange(server, request("/v1/completions", "OPTIONS"))
    assert (status, headers["allow"]) == (405, "POST")


def test_keys_with_whole_addresses(locked: Server) -> None:
    for path, status in (("/health", 200), ("/", 200), ("", 200), ("/v1/models", 401)):
        assert exchange(locked, request(f"http://x{path}"))[0] == status
    key = "authorization: Bearer k"
    assert exchange(locked, request("http://x/v1/models", "GET", key))[0] == 200
    assert exchange(locked, request("http://x/v1/models/http://x/health"))[0] == 401


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("org/tiny%20model", "org/tiny model"),
        ("org%2Ftiny%20model", "org/tiny model"),
        ("tiny:%C3%A9", "tiny:é"),
        ("tiny%3a%c3%a9?x=1", "tiny:é"),
        ("other", None),
        ("org", None),
        ("org/tiny%20model/", None),
    ],
)
def test_one_model(locked: Server, name: str, served: str | None) -> None:
    key = "authorization: Bearer k"
    status, _, body = exchange(locked, request(f"/v1/models/{name}", "GET", key))
    listed = {m["id"]: m for m in json.loads(exchange(locked, request("/v1/models", "GET", key))[2])["data"]}
    assert exchange(locked, request(f"/v1/models/{name}", "HEAD", key))[::2] == (status, b"")
    assert exchange(locked, request(f"/v1/models/{name}"))[0] == 401
    if served is None:
        assert status == 404
        assert json.loads(body)["error"]["code"] == "model_not_found"
    else:
        assert (status, json.loads(body)) == (200, listed[served])


def test_one_model_by_the_client(client: openai.OpenAI) -> None:
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


# --- framing ----------------------------------------------------------------------------------------------------------


def test_bodies_in_chunks_with_trailers(server: Server) -> None:
    head = request("/v1/completions", "POST", JSON, "transfer-encoding: chunked")
    chunks = [b'%x;a="b"\r\n%s\r\n' % (len(c), c) for c in (BODY[:5], BODY[5:6], BODY[6:])]
    assert exchange(server, head, *chunks, b"0\r\nx-checksum: 1\r\n\r\n")[0] == 200


def test_clients_that_wait_to_continue(server: Server) -> None:
    parts = urlsplit(server.url)
    head = request("/v1/completions", "POST", JSON, "expect: 100-continue", f"content-length: {len(BODY)}")
    with socket.create_connection((parts.hostname or "", parts.port or 0), 20) as connection:
        connection.sendall(head)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100")
        connection.sendall(BODY)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    refused = request("/v1/completions", "POST", JSON, "expect: 100-continue", "content-length: 99999999")
    assert exchange(server, refused)[0] == 413


def test_folded_headers(server: Server) -> None:
    folded = request("/v1/completions", "POST", "content-type: application/json;\r\n  charset=utf-8", body=BODY)
    assert exchange(server, folded)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [(), ("connection: keep-alive",), ("connection: close",)])
def test_the_older_protocol(server: Server, stream: bool, headers: tuple[str, ...]) -> None:
    """Answers of HTTP/1.0 have no chunks; without a length they end with the connection."""
    body = json.dumps({**json.loads(BODY), "stream": stream}).encode()
    lines = ["POST /v1/completions HTTP/1.0", JSON, f"content-length: {len(body)}", *headers, "", ""]
    status, found, answer = exchange(server, "\r\n".join(lines).encode() + body)
    assert status == 200
    assert "transfer-encoding" not in found
    if stream:
        assert answer.endswith(b"data: [DONE]\n\n")
        assert answer.startswith(b"data: {")
    else:
        assert len(answer) == int(found["content-length"])
        assert json.loads(answer)["choices"]


# --- encodings --------------------------------------------------------------------------------------------------------


def raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(data) + coder.flush()


ENCODED: list[tuple[str, bytes]] = [
    ("gzip", gzip.compress(BODY)),
    ("GZip", gzip.compress(BODY)),
    ("x-gzip", gzip.compress(BODY)),
    ("deflate", zlib.compress(BODY)),
    ("deflate", raw_deflate(BODY)),
    ("identity", BODY),
    ("", BODY),
    ("gzip, identity", gzip.compress(BODY)),
    ("deflate, gzip", gzip.compress(zlib.compress(BODY))),
    ("gzip,gzip", gzip.compress(gzip.compress(BODY))),
    ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),
]


@pytest.mark.parametrize(("coding", "data"), ENCODED, ids=range(len(ENCODED)))
def test_compressed_bodies(server: Server, coding: str, data: bytes) -> None:
    plain = json.loads(exchange(server, request("/v1/completions", "POST", JSON, body=BODY))[2])
    encoded = request("/v1/completions", "POST", JSON, f"content-encoding: {coding}", body=data)
    status, _, answer = exchange(server, encoded)
    assert (status, json.loads(answer)["choices"]) == (200, plain["choices"])


@pytest.mark.parametrize(
    ("coding", "data", "status", "word"),
    [
        ("br", BODY, 415, "'br'"),
        ("gzip, zstd", gzip.compress(BODY), 415, "'zstd'"),
        ("compress", BODY, 415, "'compress'"),
        (", ".join(["gzip"] * 5), BODY, 415, "5 content encodings"),
        ("gzip", BODY, 400, "gzip"),
        ("gzip", gzip.compress(BODY)[:-4], 400, "ends early"),
        ("gzip", gzip.compress(BODY) + b"x", 400, "gzip"),
        ("gzip", b"", 400, "gzip"),
        ("deflate", zlib.compress(BODY)[:-5], 400, "deflate"),
        ("deflate", zlib.compress(BODY) + b"x", 400, "follows"),
        ("gzip", gzip.compress(b" " * (9 << 20)), 413, "8,388,608"),
        ("gzip", gzip.compress(b" " * (1 << 28)), 413, "8,388,608"),
        ("gzip,gzip", gzip.compress(gzip.compress(b" " * (1 << 28))), 413, "8,388,608"),
        ("deflate", zlib.compress(b" " * (9 << 20)), 413, "8,388,608"),
    ],
    ids=range(14),
)
def test_compressed_bodies_that_are_refused(server: Server, coding: str, data: bytes, status: int, word: str) -> None:
    lines = (JSON, f"content-encoding: {coding}", *(() if data else ("content-length: 0",)))
    found, headers, answer = exchange(server, request("/v1/completions", "POST", *lines, body=data))
    assert (found, word in json.loads(answer)["error"]["message"]) == (status, True)
    assert ("gzip" in headers.get("accept-encoding", "")) == (status == 415 and "encoding '" in answer.decode())


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        ("application/json; charset=utf-8", 200, ""),
        ('application/json;charset="UTF-8"', 200, ""),
        ("Application/JSON", 200, ""),
        ("application/vnd.api+json; charset=utf8", 200, ""),
        ("application/json; charset=latin-1", 415, "latin-1"),
        ("application/json; charset=UTF-16", 415, "UTF-16"),
        ("application/json; charset=utf-16le", 415, "utf-16le"),
        ("text/plain", 400, "text/plain"),
        ("", 400, "content type"),
    ],
)
def test_content_types(server: Server, kind: str, status: int, word: str) -> None:
    found: Any = exchange(server, request("/v1/completions", "POST", f"content-type: {kind}", body=BODY))
    assert found[0] == status
    assert status == 200 or word in json.loads(found[2])["error"]["message"]


def test_cors_and_private_networks(server: Server) -> None:
    """The permission to call into a private network is not given."""
    asked = ("origin: http://a", "access-control-request-method: POST", "access-control-request-private-network: true")
    status, headers, _ = exchange(server, request("/v1/completions", "OPTIONS", *asked))
    assert status == 204
    assert "access-control-allow-private-network" not in headers
