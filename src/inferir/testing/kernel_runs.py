"""Kernels of regions, run where this machine can: CPU libraries directly, Triton's text in its interpreter.

results = run_regions(backend, context, [RegionRun(region, operands), …])
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inferir.codegen.backend import Backend, BucketMeta, BuildJob, Context, LoweredBucket
from inferir.codegen.library import region_digest
from inferir.ir.contract import abi
from inferir.ir.contract.kernel_args import KernelArg, Operand, Result, Workspace
from inferir.ir.contract.symbols import COUNTED
from inferir.ir.contract.target import host_features, missing_features
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dims import parse_dim, substitute
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.interpreter import run_body
from inferir.ir.system.held_folder import scratch_folder

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

PER_LIBRARY = 64
"""Regions of one library: compilers are not made for modules of many hundreds of functions."""


@dataclass(frozen=True)
class RegionRun:
    """A region, and its operands in order."""

    region: Node
    operands: Sequence[torch.Tensor]

    @property
    def body(self) -> Graph:
        body: Graph = self.region.attrs["body"]
        return body

    @property
    def symbols(self) -> dict[str, int]:
        """The sizes that the operands give to symbols."""
        pairs = zip(self.body.inputs, self.operands, strict=True)
        return {
            str(d): n for v, t in pairs for d, n in zip(v.type.shape, t.shape, strict=True) if not isinstance(d, int)
        }

    def wanted(self) -> list[torch.Tensor]:
        """The results by the reference interpreter."""
        return run_body(self.body, self.operands)


Runner = Callable[[Backend, Context, Sequence[RegionRun]], list[list["torch.Tensor"]]]
"""Results of every region's kernel, in the order of the region's results. Raises `CodegenError`."""


def runner_for(backend: Backend, context: Context) -> Runner | None:
    """How this machine runs the backend's kernels for a target; None if it cannot."""
    if backend.suffix == ".so" and context.target.kind == "cpu":
        return None if missing_features(context.target, host_features()) else run_on_cpu
    return run_in_triton if backend.name == "triton" else None


def run_on_cpu(backend: Backend, context: Context, runs: Sequence[RegionRun]) -> list[list[torch.Tensor]]:
    """Build libraries of all regions and run each once, in this thread."""
    out: dict[int, list[torch.Tensor]] = {}
    # Beside attention, products would prefetch caches that these runs do not have.
    for attention in (False, True):
        group = [i for i, r in enumerate(runs) if (r.region.attrs["anchor"] == "attention") is attention]
        for start in range(0, len(group), PER_LIBRARY):
            out |= _run_library(backend, context, {i: runs[i] for i in group[start : start + PER_LIBRARY]})
    return [out[i] for i in range(len(runs))]


def _run_library(backend: Backend, context: Context, runs: Mapping[int, RegionRun]) -> dict[int, list[torch.Tensor]]:
    lowered = backend.lower({region_digest(r.region): r.region for r in runs.values()}, context)
    job = BuildJob("test", backend.module(lowered.kernels), context.target, lowered.meta.kernels)
    (library,) = backend.build([job])
    with scratch_folder("kernels") as folder:
        path = Path(folder.address, f"{folder.path.name}.so")
        path.write_bytes(library)
        loaded = ctypes.CDLL(str(path))
    host = _Host(loaded, lowered.meta)
    return {i: host.run(run) for i, run in runs.items()}


class _Host:
    """The host side of a CPU library (`inferir.ir.contract.abi`), without workers."""

    def __init__(self, library: ctypes.CDLL, meta: BucketMeta) -> None:
        self.step, self.meta = library.inferir_step, meta
        self.words = abi.row_words(max(len(k.params) for k in meta.kernels))
        size = max(64, -(-meta.scratch_bytes // 64) * 64)
        self.ctrl = aligned(np.zeros(abi.CTRL_WORDS, np.int64))
        self.scratch, self.workspace = (aligned(np.zeros(n, np.uint8)) for n in (size, meta.workspace_bytes + 64))
        self.ctrl[[abi.SCRATCH, abi.SCRATCH_BYTES]] = (self.scratch.ctypes.data, size)

    def run(self, run: RegionRun) -> list[torch.Tensor]:
        """The results; operands are copied first, since caches are written in place."""
        digest = region_digest(run.region)
        arrays: dict[KernelArg, Array] = {Operand(i): aligned(to_array(t)) for i, t in enumerate(run.operands)}
        wanted, places = run.wanted(), _places(run.body)
        for arg, tensor in zip(places, wanted, strict=True):
            if isinstance(arg, Result):
                arrays[arg] = aligned(np.full_like(to_array(tensor), 77))
        kernels = [i for i, k in enumerate(self.meta.kernels) if k.region == digest]
        table = aligned(np.zeros((len(kernels), self.words), np.int64))
        for row, number in zip(table, kernels, strict=True):
            args = self.meta.kernels[number].args
            row[: 1 + len(args)] = [number, *(self._address(arg, arrays) for arg in args)]
        counts = aligned(np.zeros(abi.COUNT_WORDS, np.int32))
        counts[: len(COUNTED)] = [run.symbols.get(s.name, 0) for s in COUNTED]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (table, self.ctrl, counts)]
        self.step(pointers[0], len(table), self.words, *pointers[1:])
        return [to_tensor(arrays[arg], t) for arg, t in zip(places, wanted, strict=True)]

    def _address(self, arg: KernelArg, arrays: Mapping[KernelArg, Array]) -> int:
        if isinstance(arg, Workspace):
            return int(self.workspace.ctypes.data) + arg.offset
        if arg not in arrays:
            raise CodegenError(f"a kernel wants {arg}, which a region that runs alone does not have")
        return int(arrays[arg].ctypes.data)


def run_in_triton(backend: Backend, context: Context, runs: Sequence[RegionRun]) -> list[list[torch.Tensor]]:
    """Run the text of every kernel in Triton's interpreter, in one process of its own."""
    import torch

    from inferir.testing.triton_interpreter import Run, run_interpreted

    launches, places = [], []
    for run in runs:
        lowered: LoweredBucket = backend.lower({region_digest(run.region): run.region}, context)
        (kernel,), (record,) = lowered.kernels, lowered.meta.kernels
        at = _places(run.body)
        given: dict[KernelArg, torch.Tensor] = {Operand(i): t for i, t in enumerate(run.operands)}
        given |= {a: torch.full_like(t, 77) for a, t in zip(at, run.wanted(), strict=True) if isinstance(a, Result)}
        grid = tuple(substitute(parse_dim(size), run.symbols) for size in record.grid)
        launches.append(Run(kernel, grid, [given[arg] for arg in record.args]))
        places.append([record.args.index(arg) for arg in at])
    outs = run_interpreted(launches)
    return [[tensors[i] for i in at] for tensors, at in zip(outs, places, strict=True)]


def _places(body: Graph) -> list[KernelArg]:
    """Where each result of a body is: a cache is the operand that it is written into."""
    return [
        Operand(body.inputs.index(_cache(v.node))) if v.op == "kv.write" else Result(i)
        for i, v in enumerate(body.outputs)
    ]


def _cache(node: Node) -> Any:
    while node.op == "kv.write":
        value = node.operands[0]
        node = value.node
    return value


def aligned(array: Any) -> Array:
    """A copy in memory aligned to 64 bytes."""
    array = np.ascontiguousarray(array)
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out: Array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def to_array(tensor: torch.Tensor) -> Array:
    """What memory holds of a tensor: half precision as the integers of its bits."""
    import torch

    as_stored = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.bool: torch.uint8}
    array: Array = tensor.contiguous().view(as_stored.get(tensor.dtype, tensor.dtype)).numpy()
    return array


def to_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    """The tensor of the type of `like` that memory holds."""
    import torch

    return torch.from_numpy(array).view(like.dtype)
