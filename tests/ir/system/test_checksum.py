from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferir.ir.system import checksum as module
from inferir.ir.system.checksum import checksum, file_checksum

# From the published test vectors of BLAKE3: inputs are 0, 1, ... 250 over and over.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


def content(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


@pytest.mark.parametrize(("size", "digest"), VECTORS.items())
def test_known_values(size: int, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 1000)
    file = tmp_path / "x"
    file.write_bytes(content(size))
    assert checksum(content(size)) == checksum(memoryview(content(size))) == digest
    assert file_checksum(file) == (digest, size)
    descriptor = os.open(file, os.O_RDONLY)
    assert file_checksum(descriptor) == (digest, size)
    os.close(descriptor)


def test_threads_do_not_change_it() -> None:
    large = os.urandom(3 << 20)
    assert checksum(large) == module.blake3.blake3(large, max_threads=1).hexdigest()
