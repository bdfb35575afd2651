"""Read safetensors files lazily: the header is parsed, tensors are views of a memory map.

Needs neither torch nor safetensors until a tensor is loaded. The format: 8 bytes little-endian header length, a
JSON object name -> {dtype, shape, data_offsets}, then the data.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from inferir.ir.errors import WeightError
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.types import TensorType

if TYPE_CHECKING:
    import torch

_DTYPES = {dtype.value.upper(): dtype for dtype in DType}
_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its type (None if the element type is unknown, spelled `spelling`) and its bytes [start,
    stop).
    """

    file: Path
    type: TensorType | None
    spelling: str
    shape: tuple[int, ...]
    start: int
    stop: int


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Stated(msgspec.Struct, frozen=True):
    """A tensor's entry of the header."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


def read_header(path: Path) -> Mapping[str, Entry]:
    """Tensors of a file by name. Raises `WeightError` naming the file (and tensor) if it is missing, damaged or
    truncated.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            length = int.from_bytes(f.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise WeightError(f"{path.name}: the file is truncated or not a safetensors file ({size} bytes)")
            header = json.loads(f.read(length), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise WeightError(f"{path.name}: the weight file does not exist in {path.parent}") from None
    except OSError as error:
        raise WeightError(f"{path.name}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{path.name}: the header is damaged ({error})") from error
    if not isinstance(header, dict):
        raise WeightError(f"{path.name}: the header is damaged (not an object)")
    base = 8 + length
    out = {name: _entry(path, name, item, base, size) for name, item in header.items() if name != "__metadata__"}
    _check_places(path, out, base, size)
    return out


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name stands in it twice")
    return out


def _check_places(path: Path, entries: Mapping[str, Entry], base: int, size: int) -> None:
    """The format allows neither holes between tensors nor two tensors in one place, nor bytes after the last."""
    end = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            what = "overlaps another" if entry.start < end else f"leaves {entry.start - end} bytes before it unused"
            raise WeightError(f"{path.name}: the file is damaged: tensor {name!r} {what}")
        end = entry.stop
    if end != size:
        raise WeightError(f"{path.name}: the file is damaged: {size - end} bytes follow its last tensor")


def _entry(path: Path, name: str, item: object, base: int, size: int) -> Entry:
    try:
        stated = msgspec.convert(item, _Stated)
    except msgspec.ValidationError as error:
        raise WeightError(f"{path.name}: the header entry of tensor {name!r} is damaged") from error
    spelling, shape = stated.dtype, stated.shape
    start, stop = (base + offset for offset in stated.data_offsets)
    dtype = _DTYPES.get(spelling)
    if stop < start:
        raise WeightError(f"{path.name}: the header entry of tensor {name!r} is damaged")
    if stop > size:
        raise WeightError(f"{path.name}: truncated: tensor {name!r} ends at byte {stop}, but the file has {size}")
    if dtype is not None and stop - start != math.prod(shape) * dtype.itemsize:
        raise WeightError(
            f"{path.name}: tensor {name!r} has {stop - start} bytes, which is not {spelling}{list(shape)}"
        )
    return Entry(path, TensorType(shape, dtype) if dtype is not None else None, spelling, shape, start, stop)


class MappedFile:
    """A memory map of a file, opened once."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)

    def bytes(self, entry: Entry) -> memoryview:
        return memoryview(self._map)[entry.start : entry.stop]

    def tensor(self, entry: Entry) -> torch.Tensor:
        """The tensor, sharing memory with the map. Must not be written to."""
        import torch

        assert entry.type is not None
        dtype = torch_dtype(entry.type.dtype)
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=dtype)
        count = math.prod(entry.shape)
        if entry.start % dtype.itemsize:  # unaligned data must be copied
            return torch.frombuffer(bytearray(self.bytes(entry)), dtype=dtype, count=count).view(entry.shape)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=entry.start).view(entry.shape)
