"""The index of a cache entry is accepted only byte for byte as written."""

import pytest

from inferir.codegen.cache.entry_index import FileRecord, Index

INDEX = Index(
    kind="kernel",
    digest="ab" * 32,
    components={"options": {"unroll": 4, "é": None}, "bucket": [1, 2]},
    files={"k.so": FileRecord.of(b"code"), "k.tir": FileRecord.of(b"")},
)


def test_round_trip() -> None:
    assert Index.decode(INDEX.encode()) == INDEX
    assert INDEX.nbytes == 4


def test_every_flipped_byte_is_noticed() -> None:
    raw = INDEX.encode()
    for position in range(len(raw)):
        bad = bytearray(raw)
        bad[position] ^= 1
        with pytest.raises(ValueError, match=r"checksum mismatch|truncated or not an index"):
            Index.decode(bytes(bad))


def test_every_truncation_is_noticed() -> None:
    raw = INDEX.encode()
    for length in range(len(raw)):
        with pytest.raises(ValueError, match=r"checksum mismatch|truncated or not an index"):
            Index.decode(raw[:length])


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"body":{}}', b'{"body":1,"sha256":""}', b"\xff\xfe", b"[" * 9999]
)
def test_other_content_is_not_an_index(raw: bytes) -> None:
    with pytest.raises(ValueError, match="truncated or not an index"):
        Index.decode(raw)
