"""The index of a cache entry: which key made it, and the size and checksum of each of its files.

It is JSON that carries a checksum of itself, and only the exact bytes that `encode` writes are accepted by `decode`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inferir.codegen.cache.cache_key import canonical_json
from inferir.ir.system.checksum import checksum

INDEX_NAME = "index.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def is_file_name(name: str) -> bool:
    """Whether an entry may hold a file of that name: one part of a path, and not hidden."""
    return _NAME.fullmatch(name) is not None and name != INDEX_NAME


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size in bytes and BLAKE3 (hexadecimal) of one file."""

    nbytes: int
    blake3: str

    @staticmethod
    def of(content: bytes) -> "FileRecord":
        return FileRecord(len(content), checksum(content))


@dataclass(frozen=True, slots=True)
class Index:
    """What an entry holds. `components` is the JSON summary of its key, for people and for explaining misses."""

    kind: str
    digest: str
    components: Mapping[str, Any]
    files: Mapping[str, FileRecord]

    @property
    def nbytes(self) -> int:
        """Size of all files, without the index."""
        return sum(record.nbytes for record in self.files.values())

    def encode(self) -> bytes:
        """The bytes of the index file."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        text = canonical_json(body)
        checksum = hashlib.sha256(text.encode()).hexdigest()
        return f'{{"body":{text},"sha256":"{checksum}"}}\n'.encode()

    @staticmethod
    def decode(raw: bytes) -> "Index":
        """The index in `raw`. Raises ValueError with the reason if anything about the bytes is not as written."""
        try:
            index = msgspec.convert(json.loads(raw)["body"], Index)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError("truncated or not an index") from error
        if index.encode() != raw:
            raise ValueError("checksum mismatch")
        if not all(map(is_file_name, index.files)):
            raise ValueError("names a file that no entry has")
        return index
