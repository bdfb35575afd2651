"""The memory a step works on: arena, inputs, outputs and KV cache, each at a fixed address for the life of the
executor."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from inferir.ir.contract.kv_groups import plan_slabs
from inferir.ir.contract.manifest import ArenaArg, Arg, InputArg, IORecord, KVArg, OutputArg, ResidentArg, WeightArg
from inferir.ir.errors import ArtifactError
from inferir.ir.graph.dtypes import DType
from inferir.runtime.loader import LoadedArtifact
from inferir.runtime.memory import Bytes, address, align, allocate

_NUMPY: dict[DType, Any] = {
    DType.F64: np.float64,
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.I16: np.int16,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.BOOL: np.bool_,
}


class StepMemory:
    """Allocates what the manifest's memory table says and turns program arguments into addresses.

    `inputs`, `outputs` and `residents` are zeroed arrays of the largest shape, C-contiguous and 64-byte aligned. bf16
    is seen as uint16.
    """

    def __init__(self, artifact: LoadedArtifact, num_blocks: int) -> None:
        manifest = artifact.manifest
        self._artifact = artifact
        self._arena = allocate(manifest.memory.arena_bytes, "the arena")
        sizes = {**manifest.limits.bounds, "NB": num_blocks}
        self.inputs = {r.name: _array(r, sizes) for r in manifest.inputs}
        self.outputs = {r.name: _array(r, sizes) for r in manifest.outputs}
        self.residents = {r.name: _array(r, sizes) for r in manifest.residents}
        self._kv: dict[KVArg, int] = {}
        self._pages: list[tuple[int, int]] = []  # of each region of the cache: where it starts, and bytes per block
        self._blocks = num_blocks
        self._pool = self._allocate_kv(num_blocks)
        self.kv_bytes, self.kv_regions = len(self._pool), len(self._pages)

    def resolve(self, arg: Arg) -> int:
        """The address an argument stands for."""
        match arg:
            case ArenaArg(offset):
                return address(self._arena) + offset
            case WeightArg(name):
                return self._artifact.weight_address(name)
            case InputArg(name):
                return address(self.inputs[name])
            case OutputArg(name):
                return address(self.outputs[name])
            case ResidentArg(name):
                return address(self.residents[name])
            case KVArg():
                return self._kv[arg]

    def cache(self, arg: KVArg) -> Bytes:
        """The memory of one tensor of a layer's cache, block by block."""
        start = self._kv[arg] - address(self._pool)
        group = self._artifact.manifest.kv[arg.group]
        (size,) = (t.nbytes for t in group.spec.tensors if t.role == arg.role)
        return self._pool[start : start + size * self._blocks]

    def touch_kv(self, region: int, first: int, stop: int) -> None:
        """Have the system give the pages of blocks `first` … `stop` - 1 in a region, by writing zeros to them."""
        start, size = self._pages[region]
        self._pool[start + first * size : start + stop * size : mmap.PAGESIZE] = 0

    def _allocate_kv(self, num_blocks: int) -> Bytes:
        """One piece of memory for all slabs, each a region per tensor; layers of different groups may share a slab."""
        groups = self._artifact.manifest.kv
        slabs = plan_slabs(groups)
        starts: list[list[int]] = []
        size = 0
        for pages in slabs.pages:
            starts.append([])
            for nbytes in pages:
                starts[-1].append(size)
                self._pages.append((size, nbytes))
                size += align(nbytes * num_blocks)
        pool = allocate(size, "the KV cache", "; give it less with --kv-cache-memory (kv_cache_memory)")
        for (number, layer), slab in slabs.slab.items():
            for tensor, start in zip(groups[number].spec.tensors, starts[slab], strict=True):
                self._kv[KVArg(number, layer, tensor.role)] = address(pool) + start
        return pool


def _array(record: IORecord, sizes: dict[str, int]) -> npt.NDArray[Any]:
    try:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in record.shape)
    except KeyError as e:
        raise ArtifactError(f"manifest.json: {record.name} has the unknown dimension {e.args[0]!r}") from None
    nbytes = math.prod(shape) * record.dtype.itemsize
    out: npt.NDArray[Any] = allocate(nbytes, record.name).view(_NUMPY[record.dtype]).reshape(shape)
    return out
