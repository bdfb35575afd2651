"""Whether the kernels of a region compute what the region says: what the reproducer of a kernel runs.

region.txt           the region's body
inputs.safetensors   its operands, by number
kernel.json          which kernels of the library compute it, in a step of which size
library.so           the bucket's library, as in the artifact
expected.safetensors what the interpreter made of the operands where the reproducer was written, for people
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from inferir.ir.contract.bucket import Bucket
from inferir.ir.contract.symbols import Limits, StepCounts
from inferir.ir.contract.target import Target
from inferir.ir.graph.graph import NOWHERE, Builder, Graph
from inferir.ir.graph.parser import parse_graph
from inferir.verify.findings import Worst
from inferir.verify.region_bound import Deviation, Expected
from inferir.verify.region_kernels import OverrunError, RegionCall, RegionKernels

BODY, INPUTS = "region.txt", "inputs.safetensors"
KERNEL, LIBRARY = "kernel.json", "library.so"


class KernelCase(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a region's kernels. fixed: which operands are exact; sizes: of the symbols."""

    call: RegionCall
    kernels: tuple[str, ...]
    anchor: str
    bucket: Bucket
    target: Target
    limits: Limits
    fixed: tuple[bool, ...]
    sizes: dict[str, int]
    counts: tuple[int, ...]
    scratch_bytes: int
    residents: dict[str, int]
    threads: int


def run(case: KernelCase, body: Graph, operands: Sequence[torch.Tensor], library: Path) -> Deviation:
    """How far the kernels are from the interpreter. Raises `OverrunError`."""
    with RegionKernels(library, case.scratch_bytes, case.threads, case.residents) as kernels:
        found = kernels.run(case.call, body, operands, case.sizes, StepCounts(*case.counts))
    return Expected.of(body, operands, case.fixed).deviation(found)


def rebuild(case: KernelCase, body: Graph, library: Path) -> KernelCase:
    """Write a library with kernels of the region alone to `library`. Raises `CodegenError`."""
    from inferir.codegen.backend import BuildJob, Context
    from inferir.codegen.backends import backend_for
    from inferir.codegen.library import region_digest

    b = Builder()
    operands = tuple(b.input(f"x{i}", v.type) for i, v in enumerate(body.inputs))
    region = b.node("kernel.region", operands, {"anchor": case.anchor, "body": body, "name": case.call.name}, NOWHERE)
    backend = backend_for(case.target)
    lowered = backend.lower({region_digest(region): region}, Context(case.bucket, case.target, case.limits))
    job = BuildJob("reproducer", backend.module(lowered.kernels), case.target, lowered.meta.kernels)
    (content,) = backend.build([job])
    library.write_bytes(content)
    call = msgspec.structs.replace(
        case.call,
        kernels=tuple(range(len(lowered.meta.kernels))),
        args=tuple(k.args for k in lowered.meta.kernels),
        workspace_bytes=max(case.call.workspace_bytes, lowered.meta.workspace_bytes),
    )
    scratch = max(case.scratch_bytes, lowered.meta.scratch_bytes)
    return msgspec.structs.replace(case, call=call, scratch_bytes=scratch)


def reproduce(folder: Path, arguments: Sequence[str] = ()) -> int:
    """Run the reproducer in `folder` and say what came out: 1 while the fault is there, else 0."""
    from safetensors.torch import load_file

    case = msgspec.json.decode((folder / KERNEL).read_bytes(), type=KernelCase)
    body = parse_graph((folder / BODY).read_text(encoding="utf-8"))
    tensors = load_file(folder / INPUTS)
    operands = [tensors[str(i)] for i in range(len(body.inputs))]
    print(f"bucket {case.bucket.name}, {' and '.join(case.kernels)}")
    library = folder / LIBRARY
    if "--rebuild" in arguments:
        library = Path(tempfile.mkdtemp(prefix="inferir-rebuilt-")) / LIBRARY
        case = rebuild(case, body, library)
        print(f"built anew: {library}")
    try:
        deviation = run(case, body, operands, library)
    except OverrunError as error:
        print(f"{error}\nFAULT")
        return 1
    print(describe(deviation.worst) if deviation.worst is not None else "all results are as expected")
    print("fixed" if deviation.passed else "FAULT")
    return int(not deviation.passed)


def describe(worst: Worst) -> str:
    """The worst element in one line."""
    at = ", ".join(map(str, worst.index))
    bound = "" if worst.bound is None else f"; they may be {worst.bound:.2e} apart"
    return f"{worst.name}[{at}] is {worst.found:.9g}, expected {worst.expected:.9g}{bound}"
