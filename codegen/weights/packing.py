"""Weights of an artifact: transforms evaluated once and written as a safetensors file.

Every tensor starts at a multiple of 64 bytes. The file is written in large aligned pieces, so that the page cache can
hold it in huge pages and a process that maps it right after has them too.

A weight transform is a small graph over checkpoint tensors (concatenate, pack, tabulate …) with one output. Code and
weights are independent: the same kernels serve every checkpoint of an architecture.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from inferir.codegen.cache.cache_key import CacheKey
from inferir.codegen.cache.compile_cache import CompileCache
from inferir.codegen.cache.source_hash import keyed, package_hash
from inferir.ir.contract.manifest import ALIGNMENT, FileRecord, TensorRecord
from inferir.ir.errors import ArtifactError
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Graph, Node, structural_text
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.ir.system.atomic_file import new_file, write_all

LoadTensor = Callable[[str], Any]
Progress = Callable[[int, int], None]

KIND = "weights"
STORED = "tensors.safetensors"
MODEL, TABLES = "model.safetensors", "tables.safetensors"
CONSTANT = "const."
"""How the names of values start that the trace took from the model's configuration."""

PIECE = 8 << 20
"""Bytes written at once, a multiple of the huge page of every supported system (2 MiB)."""


def _head(types: Mapping[str, TensorType]) -> bytes:
    """Header bytes for tensors that follow one another, each padded to a multiple of 64 bytes.

    The format allows no holes, so the padding between tensors is tensors too, named `__pad.N`. It spells element types
    as `DType` names them.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "inferir"}}
    at = 0
    for i, (name, type_) in enumerate(types.items()):
        end = at + type_.nbytes({})
        header[name] = {
            "dtype": type_.dtype.name,
            "shape": list(type_.concrete({})),
            "data_offsets": [at, end],
        }
        at = end
        pad = -at % ALIGNMENT
        if pad:
            header[f"__pad.{i}"] = {"dtype": "U8", "shape": [pad], "data_offsets": [at, at + pad]}
            at += pad
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


class _Pieces:
    """Collects bytes and writes them to an unbuffered file, `PIECE` at a time."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._held = bytearray()

    def add(self, content: bytes) -> None:
        self._held += content
        whole = len(self._held) // PIECE * PIECE
        for at in range(0, whole, PIECE):
            write_all(self._file, self._held[at : at + PIECE])
        del self._held[:whole]

    def flush(self) -> None:
        write_all(self._file, self._held)
        self._held.clear()


@dataclass(frozen=True)
class WeightCache:
    """Finished files in the compile cache, by their transforms and the content of the checkpoint."""

    cache: CompileCache
    checkpoint: str
    dtype: DType

    def key(self, types: Mapping[str, TensorType], transforms: Mapping[str, Graph]) -> CacheKey:
        """The key of a file with the tensors of `types`, in their order."""
        made = (f"{name} {type_} {_transform_text(name, transforms.get(name))}" for name, type_ in types.items())
        return keyed(
            checkpoint=self.checkpoint,
            dtype=self.dtype.value,
            tensors=len(types),
            transforms=hashlib.sha256("\n".join(made).encode()).hexdigest(),
            interpreter=package_hash("ir"),
            torch=importlib.metadata.version("torch"),
        )


def _transform_text(name: str, transform: Graph | None) -> str:
    return f"checkpoint {name}" if transform is None else structural_text(transform)


def weight_files(types: Mapping[str, TensorType], transforms: Mapping[str, Graph]) -> dict[str, dict[str, TensorType]]:
    """The tensors of each file: tables that follow from the configuration and options have one of their own, so that
    other options leave the file of the checkpoint's tensors as it is.
    """
    files: dict[str, dict[str, TensorType]] = {MODEL: {}, TABLES: {}}
    for name, type_ in types.items():
        sources = transforms[name].weights() if name in transforms else (name,)
        table = all(source.startswith(CONSTANT) for source in sources)
        files[TABLES if table else MODEL][name] = type_
    return {file: tensors for file, tensors in files.items() if tensors}


class TensorMaker:
    """Makes the tensors of an artifact from checkpoint tensors, which `load(name)` gives. What one op with several
    results makes of them is computed once for transforms that follow one another.
    """

    def __init__(self, load: LoadTensor) -> None:
        self._load = load
        self._node: Node | None = None
        self._results: list[Any] = []

    def __call__(self, name: str, transform: Graph | None) -> Any:
        """The tensor that `transform` describes, or without one that of the checkpoint."""
        if transform is None:
            return self._load(name).contiguous()
        (value,) = transform.outputs
        if value.node is not self._node:
            self._node = value.node
            every = tuple(map(str, range(len(value.node.results))))
            graph = Graph((), value.node.results, every, transform.name)
            self._results = list(interpret(graph, {}, {n: self._load(n) for n in graph.weights()}).values())
        return self._results[value.index].contiguous()


def write_weights(
    path: Path,
    types: Mapping[str, TensorType],
    transforms: Mapping[str, Graph],
    load: LoadTensor,
    store: WeightCache,
    progress: Progress | None = None,
) -> FileRecord | None:
    """Write every tensor of `types` to the safetensors file `path`: by its transform, else as the checkpoint has it.

    `store` may have the file already, and shares its bytes then; else `load` is called. Returns size and checksum, None
    where `store` keeps nothing. The file appears whole or not at all. Raises `ArtifactError` naming file and reason
    (disk full, say), leaving nothing.
    """
    key = store.key(types, transforms)
    try:
        if (known := store.cache.take_file(KIND, key, STORED, path)) is not None:
            return FileRecord(blake3=known.blake3, bytes=known.nbytes)
        head, make = _head(types), TensorMaker(load)
        with new_file(path) as file:
            pieces = _Pieces(file)
            pieces.add(head)
            for done, (name, type_) in enumerate(types.items()):
                pieces.add(_content(name, type_, transforms.get(name), make))
                pieces.add(bytes(-type_.nbytes({}) % ALIGNMENT))
                if progress is not None:
                    progress(done + 1, len(types))
            pieces.flush()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from None
    kept = store.cache.keep_file(KIND, key, STORED, path)
    return None if kept is None else FileRecord(blake3=kept.blake3, bytes=kept.nbytes)


def _content(name: str, type_: TensorType, transform: Graph | None, make: TensorMaker) -> bytes:
    """The bytes of one tensor."""
    import torch

    with torch.no_grad():
        tensor = make(name, transform)
    if tuple(tensor.shape) != type_.concrete({}) or tensor.dtype != torch_dtype(type_.dtype):
        raise ArtifactError(f"weight {name!r} is {tensor.dtype}{list(tensor.shape)}, expected {type_}")
    content: bytes = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return content


def read_index(path: Path, relative: str) -> dict[str, TensorRecord]:
    """Records of the tensors in a file made by `write_weights`, under the artifact-relative name `relative`."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    records = {}
    for name, entry in header.items():
        if name.startswith("__"):
            continue
        start, end = entry["data_offsets"]
        records[name] = TensorRecord(
            file=relative,
            offset=8 + size + start,
            nbytes=end - start,
            dtype=DType[entry["dtype"]],
            shape=tuple(entry["shape"]),
        )
    return records


def total_bytes(types: Iterable[TensorType]) -> int:
    """Bytes that tensors take in a weight file, padding included."""
    return sum(t.nbytes({}) + -t.nbytes({}) % ALIGNMENT for t in types)
