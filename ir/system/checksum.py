"""Checksums of files: BLAKE3, a tree hash that all threads share, as fast as memory for large files."""

from __future__ import annotations

import os
from pathlib import Path

import blake3

_SMALL = 1 << 20  # bytes from which on several threads are worth waking
_PIECE = 32 << 20  # bytes read at once


def checksum(content: bytes | memoryview) -> str:
    """BLAKE3 of `content` as 64 hexadecimal digits."""
    threads = blake3.blake3.AUTO if len(content) >= _SMALL else 1
    return blake3.blake3(content, max_threads=threads).hexdigest()


def file_checksum(file: Path | int) -> tuple[str, int]:
    """BLAKE3 and size in bytes of a file, by path or by descriptor. Raises OSError.

    It is read, not mapped: a file that is cut short meanwhile is a wrong checksum and not the end of the process.
    """
    total, size = blake3.blake3(max_threads=blake3.blake3.AUTO), 0
    with open(os.dup(file) if isinstance(file, int) else file, "rb", buffering=0) as source:
        buffer = memoryview(bytearray(min(_PIECE, max(os.fstat(source.fileno()).st_size, 1))))
        while count := source.readinto(buffer):
            total.update(buffer[:count])
            size += count
    return total.hexdigest(), size
