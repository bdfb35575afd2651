"""panels: numbers in the type of x, for bf16 with two of them in one int32."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.microkernel import MicroKernel, Part
from inferir.codegen.tvm.llvm.llvm_lib import call


def _fma(sums: str, x: str, w: str) -> str:
    return call("inf_fma", 16, x, w, sums)


def _dot(sums: str, x: str, w: str) -> str:
    return call("inf_dot_bf16", 16, sums, x, w)


MICRO_KERNELS = {
    "f32": MicroKernel("f32", "float32", 1, (Part("w", "float32"),), _fma),
    "bf16": MicroKernel("bf16", "int32", 2, (Part("w", "int32"),), _dot, "avx512bf16"),
}
