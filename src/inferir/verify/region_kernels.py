"""Running the kernels of one region from a bucket's library, on tensors: as a step does, over memory of its own.

Results are filled with a pattern of NaN before, and a guard behind each tells whether a kernel wrote too far.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import torch

from inferir.ir.contract import abi
from inferir.ir.contract.kernel_args import KernelArg, Of, Operand, Resident, Result, Workspace
from inferir.ir.contract.manifest import ALIGNMENT
from inferir.ir.contract.symbols import StepCounts
from inferir.ir.errors import ArtifactError
from inferir.ir.graph.dtypes import torch_dtype
from inferir.ir.graph.graph import Graph, Value
from inferir.runtime.executor.cpu.worker_threads import WorkerPool, function
from inferir.runtime.memory import Bytes, address, allocate

GUARD = 4096
LARGE = 1 << 20
_UNWRITTEN = 0xFF
"""Of every byte of a result before a kernel runs: NaN as a number of floating point, -1 as an integer."""


class RegionCall(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels that compute a region, in order: their numbers in the library, and what their parameters stand for.

    in_place: by result, the operand that a kernel changes into it, which is a cache.
    """

    name: str
    kernels: tuple[int, ...]
    args: tuple[tuple[KernelArg, ...], ...]
    in_place: dict[int, int] = {}
    workspace_bytes: int = 0


class OverrunError(ArtifactError):
    """A kernel wrote behind the memory of a result."""


class RegionKernels:
    """The kernels of a library. scratch_bytes: what each thread needs. residents: bytes of each resident buffer.

    Raises `ArtifactError` if the library cannot be loaded; `with` stops its threads at the end.
    """

    def __init__(self, library: Path, scratch_bytes: int, threads: int, residents: Mapping[str, int]) -> None:
        try:
            self._library = ctypes.CDLL(str(library.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise ArtifactError(f"{library}: cannot be loaded: {error}") from None
        self._step = function(self._library, "inferir_step")
        self._workers = WorkerPool(self._library, threads=threads, scratch_bytes=scratch_bytes)
        self._counts = allocate(abi.COUNT_WORDS * 4, "the step counts").view(np.int32)
        self._residents = {n: allocate(size, f"the resident buffer {n}") for n, size in residents.items()}
        self._unused = allocate(ALIGNMENT, "memory for prefetches")

    def __enter__(self) -> RegionKernels:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._workers.close()

    def run(
        self,
        call: RegionCall,
        body: Graph,
        operands: Sequence[torch.Tensor],
        sizes: Mapping[str, int],
        counts: StepCounts,
    ) -> list[torch.Tensor]:
        """What the kernels make of `operands`, in the order of the region's results. sizes: of the symbols.

        Raises `OverrunError` naming a result behind which was written.
        """
        written = set(call.in_place.values())
        held = [_copied(t) if i in written else _aligned(t) for i, t in enumerate(operands)]
        places: dict[KernelArg, Bytes] = {Operand(i): memory for i, memory in enumerate(held)}
        for index, value in enumerate(body.outputs):
            if index not in call.in_place:
                places[Result(index)] = _blank(value.type.nbytes(sizes))
        places[Workspace()] = allocate(call.workspace_bytes + ALIGNMENT, "the workspace")
        words = abi.row_words(max(len(args) for args in call.args))
        table = allocate(len(call.kernels) * words * 8, "the op table").view(np.int64).reshape(-1, words)
        for row, kernel, args in zip(table, call.kernels, call.args, strict=True):
            row[0] = kernel
            row[1 : 1 + len(args)] = [self._address(arg, places) for arg in args]
        self._counts[:] = 0
        self._counts[: len(counts)] = counts
        self._step(address(table), len(table), words, self._workers.control, address(self._counts))
        out = []
        for index, value in enumerate(body.outputs):
            if index in call.in_place:
                out.append(_seen(held[call.in_place[index]], value, sizes))
                continue
            memory = places[Result(index)]
            if (memory[-GUARD:] != _UNWRITTEN).any():
                raise OverrunError(f"{call.name} writes behind its result {index}")
            out.append(_seen(memory, value, sizes))
        return out

    def _address(self, arg: KernelArg, places: Mapping[KernelArg, Bytes]) -> int:
        match arg:
            case Workspace(offset):
                return address(places[Workspace()]) + offset
            case Resident(name):
                return address(self._residents[name])
            case Of():
                return address(self._unused)
        return address(places[arg])


def _bytes(tensor: torch.Tensor) -> Bytes:
    content: Bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return content


def _aligned(tensor: torch.Tensor) -> Bytes:
    """The tensor's own memory where it is large and kernels can read it as it lies. A copy has a guard behind it: what
    kernels prefetch may lie behind the end.
    """
    content = _bytes(tensor)
    return content if len(content) > LARGE and address(content) % ALIGNMENT == 0 else _copied(tensor)


def _copied(tensor: torch.Tensor) -> Bytes:
    content = _bytes(tensor)
    memory = _blank(len(content))
    memory[: len(content)] = content
    return memory


def _blank(nbytes: int) -> Bytes:
    """Memory of `nbytes`, up to the next multiple of the alignment, and a guard."""
    memory = allocate(-(-nbytes // ALIGNMENT) * ALIGNMENT + GUARD, "a value")
    memory[:] = _UNWRITTEN
    return memory


def _seen(memory: Bytes, value: Value, sizes: Mapping[str, int]) -> Any:
    """The value in a piece of memory, copied."""
    content = memory[: value.type.nbytes(sizes)].copy()
    return torch.from_numpy(content).view(torch_dtype(value.type.dtype)).reshape(value.type.concrete(sizes))
