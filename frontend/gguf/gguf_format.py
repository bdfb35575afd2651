"""The bytes of one GGUF file: header, metadata and the list of tensors. Needs nothing but the standard library.

Every count and length is compared with what is left of the file before anything is read or allocated, so a damaged
file gives one `WeightError` that names the key or tensor, in time bounded by the file's size.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferir.ir.errors import WeightError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
MAX_DIMS = 4

# Kind of value by its number in the file: (name, format of `struct`).
_SCALARS = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "?"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_TEXT, _ARRAY = 8, 9
# Smallest number of bytes that a key with its value, and the entry of a tensor, can take.
_KEY_BYTES, _TENSOR_BYTES = 13, 24


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the file lists it. shape: slowest axis first, as numpy writes it. kind: number of the element type.
    offset: of its first byte in `file`.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    file: Path


@dataclass(frozen=True)
class Header:
    """What a file says before its data. types: kind of every value, such as "u32" or "text list". tensors: in the
    order of the file. data_offset: where the data begins.
    """

    path: Path
    values: Mapping[str, Any]
    types: Mapping[str, str]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    alignment: int
    size: int


class _Cursor:
    """Reads values in order. `what` names the thing being read, for errors."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.size = len(data)
        self.path = path
        self.at = 0
        self.what = "the header"

    def fail(self, why: str) -> WeightError:
        return WeightError(f"{self.path.name}: {self.what}: {why}")

    def need(self, count: int) -> None:
        if count > self.size - self.at:
            raise self.fail(f"the file ends here (truncated?): {count} bytes wanted, {self.size - self.at} left")

    def number(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def text(self, strict: bool = True) -> str:
        length = self.number("Q")
        self.need(length)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError:
            raise self.fail("a text is not UTF-8") from None

    def value(self, strict: bool) -> tuple[str, Any]:
        kind = self.number("I")
        if kind in _SCALARS:
            name, code = _SCALARS[kind]
            return name, self.number(code)
        if kind == _TEXT:
            return "text", self.text(strict)
        if kind != _ARRAY:
            raise self.fail(f"{kind} is not the number of a value type")
        inner, count = self.number("I"), self.number("Q")
        if inner == _TEXT:
            self.need(8 * count)
            return "text list", [self.text(strict) for _ in range(count)]
        if inner not in _SCALARS:
            raise self.fail(f"a list of values of type number {inner} is not supported")
        name, code = _SCALARS[inner]
        size = struct.calcsize("<" + code) * count
        self.need(size)
        values = list(struct.unpack_from(f"<{count}{code}", self.data, self.at))
        self.at += size
        return f"{name} list", values


def read_header(path: Path) -> Header:
    """Parse a file's header. Raises `WeightError` naming the file and the key or tensor at fault."""
    try:
        with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data, path))
    except OSError as error:
        raise WeightError(f"{path.name}: the GGUF file cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise WeightError(f"{path.name}: the GGUF file is empty") from error


def _parse(at: _Cursor) -> Header:
    at.need(24)
    if at.data[:4] != MAGIC:
        raise at.fail("this is not a GGUF file")
    at.at = 4
    version = at.number("I")
    if version not in VERSIONS:
        why = "is big-endian" if version and version & 0xFFFF == 0 else f"has format version {version}"
        raise at.fail(f"the file {why}; little-endian files of version 2 and 3 are read, convert it again")
    tensors, keys = at.number("Q"), at.number("Q")
    at.need(_KEY_BYTES * keys + _TENSOR_BYTES * tensors)
    values, types = _keys(at, keys)
    infos = [_tensor(at, index) for index in range(tensors)]
    alignment = values.get(ALIGNMENT, 32)
    at.what = f"key {ALIGNMENT!r}"
    if types.get(ALIGNMENT, "u32") != "u32" or alignment < 1 or alignment & (alignment - 1):
        raise at.fail(f"{alignment!r} is not a power of two of type u32")
    start = -(-at.at // alignment) * alignment
    placed = tuple(TensorInfo(i.name, i.shape, i.kind, start + i.offset, i.file) for i in infos)
    return Header(at.path, values, types, placed, start, alignment, at.size)


def _keys(at: _Cursor, count: int) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for index in range(count):
        at.what = f"key number {index + 1} of {count}"
        key = at.text()
        at.what = f"key {key!r}"
        if key in values:
            raise at.fail("the key stands twice in the file")
        types[key], values[key] = at.value(strict=not key.startswith("general."))
    return values, types


def _tensor(at: _Cursor, index: int) -> TensorInfo:
    at.what = f"tensor number {index + 1}"
    name = at.text()
    at.what = f"tensor {name!r}"
    dims = at.number("I")
    if not 1 <= dims <= MAX_DIMS:
        raise at.fail(f"it has {dims} dimensions; 1 to {MAX_DIMS} are possible")
    at.need(8 * dims)
    shape = tuple(reversed([at.number("Q") for _ in range(dims)]))
    return TensorInfo(name, shape, at.number("I"), at.number("Q"), at.path)
