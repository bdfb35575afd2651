"""An epilogue for tests of matrix products."""

from __future__ import annotations

from inferir.codegen.tvm.kernels.matmul import Columns, Epilogue
from inferir.codegen.tvm.llvm.llvm_lib import call
from inferir.codegen.tvm.source import Param, ramp


def store_epilogue(
    out_dtype: str, out_row_stride: int, residual: str | None = None
) -> tuple[Epilogue, tuple[Param, ...]]:
    """A plain epilogue: out = acc (+ residual), stored as "f32" or "bf16".

    Returns the epilogue and its extra parameters: `out`, and `res` if `residual` names the residual's dtype. With
    interleaved weights the two parts are multiplied.
    """
    kinds = {"f32": "float32", "bf16": "uint16"}
    extra = [Param("out", kinds[out_dtype])]
    if residual:
        extra.append(Param("res", kinds[residual]))

    def epilogue(row: str, c: Columns) -> list[str]:
        at = ramp(f"{row} * {out_row_stride} + {c.column}", c.lanes)
        value = " * ".join(c.acc)
        if residual:
            old = f"res_b[{at}]"
            value = f"{value} + {old if residual == 'f32' else call('inf_bf16_to_f32', c.lanes, old)}"
        return [f"out_b[{at}] = {value if out_dtype == 'f32' else call('inf_f32_to_bf16', c.lanes, value)}"]

    return epilogue, tuple(extra)
