"""How TIR spells `acme.soft_clip` on vectors; without it, the op would decompose."""

from __future__ import annotations

from collections.abc import Sequence

from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import f32
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node


def form(node: Node, args: Sequence[str], dtype: DType, lanes: int) -> str:
    """The text for operands of type `dtype`, `lanes` at a time. Floating-point math is in float32."""
    if not dtype.is_float:
        raise CodegenError(f"{node.op} of {dtype.value} has no kernel")
    (x,) = args
    size = call("inf_abs", lanes, x)
    return f"({x}) / ({f32(1.0, lanes)} + {size} / {f32(node.attrs['limit'], lanes)})"
