"""The metadata and tensor list of a GGUF model, parsed once and shared by everything that reads it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.model_name import readable
from inferir.frontend.gguf.gguf_format import Header, TensorInfo, read_header
from inferir.frontend.gguf.gguf_parts import check_parts, part_files

Identity = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class GgufModel:
    """A GGUF model: one file, or all parts of a split one.

    values, types: the keys of the first file with plain values and the kind of each. tensors: by name, in the order of
    the files. headers: of every file.
    """

    path: Path
    values: Mapping[str, Any]
    types: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]
    headers: Mapping[Path, Header]

    @property
    def file(self) -> str:
        """The name of the (first) file, for messages."""
        return readable(self.path.name)


def identity(path: Any) -> Identity:
    """What a parse is remembered by: real path, size and time of change of every part."""

    def one(file: Path) -> tuple[str, int, int]:
        stat = file.stat()
        return str(file), stat.st_size, stat.st_mtime_ns

    return tuple(one(file) for file in part_files(Path(path).absolute()))


@functools.lru_cache(maxsize=2)
def _open(identity: Identity) -> GgufModel:
    headers = [read_header(Path(file)) for file, _, _ in identity]
    check_parts(headers)
    first = headers[0]
    return GgufModel(
        path=first.path,
        values=first.values,
        types=first.types,
        tensors={tensor.name: tensor for header in headers for tensor in header.tensors},
        headers={header.path: header for header in headers},
    )


def open_model(path: Path) -> GgufModel:
    """The parsed model. Raises `WeightError` naming file and key, tensor or part for anything that is damaged."""
    return _open(identity(path))


def metadata(path: Path) -> Mapping[str, Any]:
    """All keys of the model with plain values: numbers, texts, booleans and lists of them. Must not be changed."""
    return open_model(path).values
