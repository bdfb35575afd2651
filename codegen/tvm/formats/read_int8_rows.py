"""int8_rows: four unsigned bytes of a weight times four signed ones of x; sums are the bits of int32."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.microkernel import MicroKernel, Part
from inferir.codegen.tvm.llvm.llvm_lib import call


def _dot(sums: str, x: str, w: str) -> str:
    return call("inf_dot_u8", 16, sums, x, w)


MICRO_KERNELS = {"i8": MicroKernel("u8", "int32", 4, (Part("w", "int32"),), _dot)}
