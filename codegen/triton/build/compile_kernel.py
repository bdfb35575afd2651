"""Ahead-of-time compilation of kernels to cubins. Needs no GPU, no driver and no CUDA toolkit."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDAOptions
from triton.compiler import ASTSource

from inferir.codegen.backend import BuildJob
from inferir.codegen.triton.kernel_module import load_function, write_module
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.contract.gpu_kernel import GpuKernel, GpuLibrary
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError, TargetError
from inferir.ir.system.held_folder import scratch_folder

ALIGNMENT = 16
_LOCK = threading.Lock()  # Triton's settings are global to the process

# Kernels round where their text rounds, and keep subnormal numbers, as PyTorch on a CPU does.
OPTIONS: Mapping[str, Any] = {"num_ctas": 1, "num_stages": 1, "enable_fp_fusion": False, "enable_reflect_ftz": False}


def compute_capability(target: Target) -> int:
    """90 for `sm_90`. Raises `TargetError` for a target that is no CUDA device."""
    if target.kind != "cuda" or not target.mcpu.removeprefix("sm_").isdigit():
        raise TargetError(f"target {target.name} is no CUDA device; name one such as sm_90")
    return int(target.mcpu.removeprefix("sm_"))


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if Triton knows them all: it would ignore a misspelt one. Raises `CodegenError` naming it."""
    known = {f.name for f in dataclasses.fields(CUDAOptions)}
    for name in options:
        if name not in known:
            raise CodegenError(f"Triton has no compile option {name!r}")
    return dict(options)


def compile_library(job: BuildJob) -> bytes:
    """A `GpuLibrary` of all kernels of a module, as bytes. Raises `CodegenError` and `TargetError`."""
    sources = (
        KernelSource(k.name, job.source, k.args, tuple((p.name, p.dtype) for p in k.params), k.tile, k.grid)
        for k in job.kernels
    )
    return GpuLibrary(kernels=tuple(compile_kernel(source, job.target) for source in sources)).to_bytes()


def compile_kernel(
    kernel: KernelSource, target: Target, aligned: bool = True, options: Mapping[str, Any] | None = None
) -> GpuKernel:
    """Compile one kernel for `target`.

    aligned: every pointer is a multiple of 16 bytes, which wide loads need; a kernel without takes any pointer.
    options: Triton's compile options on top of `OPTIONS`. The result depends on these arguments and Triton's version
    only. Raises `CodegenError` if Triton refuses the source, `TargetError` for a target that is no CUDA device.
    """
    capability = compute_capability(target)
    chosen = check_options({**OPTIONS, "num_warps": kernel.tile["warps"], **(options or {})})
    signature = {name: f"*{kind}" for name, kind in kernel.params}
    attrs = {(i,): [["tt.divisibility", ALIGNMENT]] for i in range(len(signature))} if aligned else {}
    with scratch_folder("triton") as scratch, _LOCK, triton.knobs.cache.scope():
        folder = scratch.path
        triton.knobs.cache.dir = str(folder / "cache")
        with triton.knobs.compilation.scope(), triton.knobs.runtime.scope():
            triton.knobs.compilation.disable_line_info = True
            triton.knobs.runtime.interpret = False
            fn = load_function(write_module(kernel.source, folder), kernel.name)
            source = ASTSource(fn=fn, signature=signature, constexprs={}, attrs=attrs)
            try:
                out = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=chosen)
            except Exception as error:
                raise CodegenError(f"kernel {kernel.name} for {target.name}: {_first_line(error)}") from error
    return _packaged(kernel, target, aligned, out)


def _packaged(kernel: KernelSource, target: Target, aligned: bool, out: Any) -> GpuKernel:
    meta = out.metadata
    ptxas = triton.knobs.nvidia.ptxas_blackwell if compute_capability(target) >= 100 else triton.knobs.nvidia.ptxas
    return GpuKernel(
        name=meta.name,
        target=target.name,
        image=bytes(out.asm["cubin"]),
        grid=kernel.grid,
        params=tuple(f"*{kind}" for _, kind in kernel.params),
        alignment=ALIGNMENT if aligned else 1,
        num_warps=meta.num_warps,
        num_ctas=meta.num_ctas,
        warp_size=meta.warp_size,
        shared=meta.shared,
        global_scratch_size=meta.global_scratch_size,
        global_scratch_align=meta.global_scratch_align,
        profile_scratch_size=meta.profile_scratch_size,
        profile_scratch_align=meta.profile_scratch_align,
        launch_pdl=meta.launch_pdl,
        launch_cooperative_grid=meta.launch_cooperative_grid,
        versions={"triton": triton.__version__, "ptxas": ptxas.version},
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
