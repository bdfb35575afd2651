"""Ahead-of-time compilation of kernels to cubins. Needs no GPU, no driver and no CUDA toolkit."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inferir.codegen.backend import BuildJob
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.contract.gpu_kernel import GpuKernel, GpuLibrary
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError, TargetError
from inferir.ir.system.held_folder import scratch_folder

ALIGNMENT = 16
_LOCK = threading.Lock()  # Triton's settings are global to the process

# Kernels round where their text rounds, and keep subnormal numbers, as PyTorch on a CPU does.
OPTIONS: Mapping[str, Any] = {"num_ctas": 1, "num_stages": 1, "enable_fp_fusion": False, "enable_reflect_ftz": False}


_LAUNCH = (
    *("num_warps", "num_ctas", "warp_size", "shared", "launch_pdl", "launch_cooperative_grid"),
    *("global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align"),
)
"""What Triton calls what a launch needs, as `GpuKernel` does."""


def compute_capability(target: Target) -> int:
    """90 for `sm_90`. Raises `TargetError` for a target that is no CUDA device."""
    if target.kind != "cuda" or not target.mcpu.removeprefix("sm_").isdigit():
        raise TargetError(f"target {target.name} is no CUDA device; name one such as sm_90")
    return int(target.mcpu.removeprefix("sm_"))


def compile_library(job: BuildJob) -> bytes:
    """A `GpuLibrary` of all kernels of a module, as bytes. Raises `CodegenError` and `TargetError`."""
    sources = (
        KernelSource(k.name, job.source, k.args, tuple((p.name, p.dtype) for p in k.params), k.tile, k.grid)
        for k in job.kernels
    )
    return GpuLibrary(kernels=tuple(compile_kernel(source, job.target) for source in sources)).to_bytes()


def compile_kernel(kernel: KernelSource, target: Target) -> GpuKernel:
    """Compile one kernel for `target`, for pointers that are multiples of `ALIGNMENT` bytes.

    The result depends on these arguments and Triton's version only. Raises `CodegenError` if Triton refuses the source,
    `TargetError` for a target that is no CUDA device.
    """
    capability = compute_capability(target)
    signature = {name: f"*{kind}" for name, kind in kernel.params}
    attrs = {(i,): [["tt.divisibility", ALIGNMENT]] for i in range(len(signature))}
    options = {**OPTIONS, "num_warps": kernel.tile["warps"]}
    with scratch_folder("triton") as scratch, _LOCK, triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(scratch.path / "cache")
        with triton.knobs.compilation.scope(), triton.knobs.runtime.scope():
            triton.knobs.compilation.disable_line_info = True
            triton.knobs.runtime.interpret = False
            path = scratch.path / f"{kernel.name}.py"
            path.write_text(kernel.source, encoding="utf-8")
            source = ASTSource(load_function(path, kernel.name), signature, constexprs={}, attrs=attrs)
            try:
                out = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            except Exception as error:
                raise CodegenError(f"kernel {kernel.name} for {target.name}: {_first_line(error)}") from error
    return _packaged(kernel, target, out)


def load_function(path: Path, name: str) -> Any:
    """The kernel `name` of a module file, which Triton reads its text from. Raises `CodegenError` naming the file if it
    cannot be imported.
    """
    spec = importlib.util.spec_from_file_location(f"inferir_triton_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return getattr(module, name)
    except Exception as error:
        raise CodegenError(f"{path.name}: {type(error).__name__}: {error}") from error


def _packaged(kernel: KernelSource, target: Target, out: Any) -> GpuKernel:
    meta = out.metadata
    ptxas = triton.knobs.nvidia.ptxas_blackwell if compute_capability(target) >= 100 else triton.knobs.nvidia.ptxas
    return GpuKernel(
        name=meta.name,
        target=target.name,
        image=bytes(out.asm["cubin"]),
        grid=kernel.grid,
        params=tuple(f"*{kind}" for _, kind in kernel.params),
        alignment=ALIGNMENT,
        versions={"triton": triton.__version__, "ptxas": ptxas.version},
        **{name: getattr(meta, name) for name in _LAUNCH},
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
