"""Python numbers among the operands of an elementwise op: which type they take and whether they are rounded to it.

PyTorch's rules on CPUs, which the reference interpreter follows: a number is rounded to the type of the tensor that it
meets, and a half-precision tensor is compared with, or added to, what it could hold itself. Factors, divisors and
exponents are exceptions: they keep the precision of float32.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.ir.graph.registry import opdef

_HALF = {DType.BF16: ml_dtypes.bfloat16, DType.F16: np.float16}


def operand_type(node: Node) -> DType:
    """The element type of an elementwise op's tensors, which its numbers take; not that of a condition."""
    strong = [o.type.dtype for o in node.operands[opdef(node.op).conditions :] if o.op != "core.scalar"]
    return strong[0] if strong else node.types[0].dtype


def number(node: Node, position: int, dtype: DType) -> float:
    """The number that operand `position` of `node` stands for beside tensors of type `dtype`."""
    value: float = node.operands[position].node.attrs["value"]
    exact = dtype.is_float and position in opdef(node.op).exact_numbers
    return stored(value, DType.F32 if exact else dtype)


def exponent(node: Node) -> float | None:
    """The exponent of a power, if it is a number."""
    of = node.operands[1]
    return float(of.node.attrs["value"]) if of.op == "core.scalar" else None


def stored(value: float, dtype: DType) -> float:
    """What memory of type `dtype` holds of `value`; what fits float32 is left for its registers to round."""
    if dtype in _HALF:
        with np.errstate(over="ignore"):
            return float(_HALF[dtype](np.float32(value)))
    return single(value) if dtype is DType.F32 and math.isinf(single(value)) else value


def single(value: float) -> float:
    """The float32 next to `value`."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
