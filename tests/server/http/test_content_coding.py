"""Bodies that come compressed: which codings are known, how they are undone, and where they are refused."""

from __future__ import annotations

import gzip
import zlib

import pytest

from inferir.server.http.content_coding import content_codings, decoded
from inferir.server.http.http_errors import ApiError

TEXT = b'{"prompt": "x"}' * 20
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
BARE = RAW.compress(TEXT) + RAW.flush()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        (["gzip"], ["gzip"]),
        (["GZip , deflate"], ["gzip", "deflate"]),
        (["gzip", "x-gzip"], ["gzip", "x-gzip"]),
        (["identity"], []),
        ([",,"], []),
    ],
)
def test_codings(headers: list[str], expected: list[str]) -> None:
    assert content_codings(headers) == expected


@pytest.mark.parametrize("headers", [["br"], ["gzip, zstd"], ["gzip," * 5]])
def test_codings_that_are_refused(headers: list[str]) -> None:
    with pytest.raises(ApiError) as raised:
        content_codings(headers)
    assert raised.value.status == 415


@pytest.mark.parametrize(
    ("data", "codings"),
    [
        (TEXT, []),
        (gzip.compress(TEXT), ["gzip"]),
        (gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:]), ["x-gzip"]),
        (zlib.compress(TEXT), ["deflate"]),
        (BARE, ["deflate"]),
        (zlib.compress(gzip.compress(TEXT)), ["gzip", "deflate"]),
    ],
    ids=["plain", "gzip", "two members", "zlib", "without a head", "both"],
)
def test_decoded(data: bytes, codings: list[str]) -> None:
    assert decoded(data, codings, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("data", "codings", "status"),
    [
        (gzip.compress(TEXT + b"x"), ["gzip"], 413),
        (gzip.compress(gzip.compress(b"0" * 10**6)), ["gzip", "gzip"], 413),
        (gzip.compress(TEXT)[:-9], ["gzip"], 400),
        (TEXT, ["gzip"], 400),
        (zlib.compress(TEXT) + b"x", ["deflate"], 400),
        (b"", ["gzip"], 400),
    ],
    ids=["a byte too long", "large inside", "cut", "not compressed", "something follows", "empty"],
)
def test_bodies_that_are_refused(data: bytes, codings: list[str], status: int) -> None:
    with pytest.raises(ApiError) as raised:
        decoded(data, codings, len(TEXT))
    assert raised.value.status == status
