"""The metadata of a GGUF file, parsed once and shared by everything that reads it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@functools.cache
def _reader_class() -> type[Any]:
    gguf: Any = importlib.import_module("gguf.gguf_reader")
    numpy: Any = importlib.import_module("numpy")

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        """GGUFReader that slices a plain array: slicing a memmap object costs ten times as much."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            if not hasattr(self, "_plain"):
                self._plain = self.data.view(numpy.ndarray)
            kind = numpy.dtype(dtype).newbyteorder(self.byte_order if override_order is None else override_order)
            return self._plain[offset : offset + kind.itemsize * int(count)].view(kind)

    return Reader


def identity(path: Any) -> tuple[str, int, int]:
    """What a parse is remembered by: real path, size and time of change."""
    path = Path(path).resolve()
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns


@functools.lru_cache(maxsize=1)
def open_file(identity: tuple[str, int, int]) -> Any:
    """The parsed file: `fields` and `tensors` of gguf's reader. Raises whatever the parser raises."""
    return _reader_class()(identity[0])


@functools.lru_cache(maxsize=1)
def _values(identity: tuple[str, int, int]) -> Mapping[str, Any]:
    fields = open_file(identity).fields
    return {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}


def metadata(path: Path) -> Mapping[str, Any]:
    """All keys of the file with plain values: numbers, texts, booleans and lists of them. Must not be changed."""
    return _values(identity(path))
