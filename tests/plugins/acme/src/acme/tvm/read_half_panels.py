"""How rows of float32 are multiplied with half_panels: a bf16 is the upper half of a float32."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.microkernel import MicroKernel, Part
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Writer, ramp
from inferir.ir.weight_blocks import BLOCK


def _load(w: Writer, v: int) -> None:
    stored = f"W[{ramp(f'k * {BLOCK} + {16 * v}', 16)}]"
    w.line(f"w{v}: T.let[T.float32x16] = {call('inf_bf16_to_f32', 16, stored)}")


def _fma(sums: str, x: str, w: str) -> str:
    return call("inf_fma", 16, x, w, sums)


MICRO_KERNELS = {"f32": MicroKernel("acme_half", "float32", 1, (Part("w", "uint16"),), _fma, load=_load)}
