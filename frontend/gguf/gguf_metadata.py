"""A GGUF model: the metadata and tensor list of its file, or of the parts that it is split over,
`NAME-00001-of-00003.gguf` and so on, parsed once and shared by everything that reads it.

Which files belong together is read from their names alone, so that a digest needs no parse; that they do belong
together is then checked by their keys `split.no`, `split.count` and `split.tensors.count`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.model_name import readable
from inferir.frontend.gguf.gguf_format import Header, TensorInfo, read_header
from inferir.ir.errors import WeightError

PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_PARTS = 4096
NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
Identity = tuple[tuple[str, int, int], ...]


def part_of(path: Path) -> tuple[str, int, int] | None:
    """(name, number from 1, count) if the file is named like a part of a split model."""
    match = PART.fullmatch(path.name)
    return None if match is None else (match["name"], int(match["number"]), int(match["count"]))


def part_files(path: Path) -> tuple[Path, ...]:
    """All files of the model that begins with `path`, in order; `path` alone if it is not split.

    Raises `WeightError` naming a part that is missing, or the first part where `path` is another.
    """
    named = part_of(path)
    if named is None or named[2] <= 1:
        return (path,)
    name, number, count = named
    if count > MAX_PARTS:
        raise WeightError(f"{path.name}: a model of {count} parts is not supported; at most {MAX_PARTS} are")
    files = tuple(path.with_name(f"{name}-{index:05}-of-{count:05}.gguf") for index in range(1, count + 1))
    if number != 1:
        raise WeightError(f"{path.name} is part {number} of {count} of a split model; name the first, {files[0].name}")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WeightError(f"{missing[0]}{more}: part of the split model {path.name} is missing from {path.parent}")
    return files


def split_models(files: Sequence[Path]) -> list[Path]:
    """`files` of a folder without the parts that belong to a first part among them."""
    firsts = {(part[0], part[2]) for f in files if (part := part_of(f)) is not None and part[1] == 1}

    def follows(file: Path) -> bool:
        part = part_of(file)
        return part is not None and part[1] != 1 and (part[0], part[2]) in firsts

    return [file for file in files if not follows(file)]


def file_digest(path: Path, start: str = "") -> str:
    """Hex SHA-256 of `start` and the bytes of all parts of the model."""
    digest = hashlib.sha256(start.encode())
    for file in part_files(path):
        try:
            with file.open("rb") as f:
                while chunk := f.read(1 << 22):
                    digest.update(chunk)
        except OSError as error:
            raise WeightError(f"{file.name}: the file cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def check_parts(headers: Sequence[Header]) -> None:
    """Raise `WeightError` unless the files are all parts of one model, each in its place."""
    first, count = headers[0], len(headers)
    for index, header in enumerate(headers):
        stated = _number(header, COUNT, 1)
        where = header.path.name
        if stated != count:
            raise WeightError(
                f"{where}: key {COUNT!r} says {stated} parts, but the file is {'one of ' if count > 1 else ''}{count}; "
                f"a part is named NAME-00001-of-{stated:05}.gguf and all stand in one folder"
            )
        place = _number(header, NUMBER, 0)
        if place != index:
            raise WeightError(f"{where}: key {NUMBER!r} is {place}, but by its name this is part {index}, from 0")
        for key, value in header.values.items():
            if index and not key.startswith("split.") and first.values.get(key, _ABSENT) != value:
                raise WeightError(f"{where}: key {key!r} is not as in {first.path.name}: parts of different models?")
    _check_tensors(headers)


_ABSENT: Any = object()


def _number(header: Header, key: str, default: int) -> int:
    value = header.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WeightError(f"{header.path.name}: key {key!r} is {value!r}; it must be a count")
    return value


def _check_tensors(headers: Sequence[Header]) -> None:
    seen: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors:
            other = seen.setdefault(tensor.name, tensor)
            if other is not tensor:
                twice = "twice" if other.file == tensor.file else f"also in {other.file.name}"
                raise WeightError(f"{tensor.file.name}: tensor {tensor.name!r} is listed {twice}")
    first = headers[0]
    stated = _number(first, TENSORS, len(seen))
    if len(headers) > 1 and stated != len(seen):
        raise WeightError(
            f"{first.path.name}: key {TENSORS!r} says {stated} tensors, but the {len(headers)} parts hold {len(seen)}: "
            "parts of different models?"
        )


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
