"""Products with stored weights check what they are given."""

import pytest

from inferir.ir.errors import IRError
from inferir.ir.formats.panels import FORMAT as PANELS
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder
from inferir.ir.graph.types import TensorType
from inferir.ir.weight_format import FORMATS


def test_products_check_what_they_are_given() -> None:
    b = Builder()
    w = b.weight("w", TensorType((96, 8), DType.F32))
    (packed,) = PANELS.transform(b, w)
    x = b.input("x", TensorType((T, 8), DType.F32))
    assert str(b.op("tensor.linear_packed", x, packed, n=96).type) == "f32[T, 96]"
    with pytest.raises(IRError, match=r"panels of f32\[300, 8\] are f32\[5, 8, 64, 1\], not f32\[2, 8, 64, 1\]"):
        b.op("tensor.linear_packed", x, packed, n=300)
    with pytest.raises(IRError, match=r"panels of f32\[96, 9\]"):
        b.op("tensor.linear_packed", b.input("x9", TensorType((T, 9), DType.F32)), packed, n=96)
    with pytest.raises(IRError, match=r"panels of bf16\[96, 8\]"):
        b.op("tensor.linear_packed", b.input("xh", TensorType((T, 8), DType.BF16)), packed, n=96)
    with pytest.raises(IRError, match="unknown weight format 'nibbles'; known: int8_rows, panels"):
        b.op("tensor.linear_packed", x, packed, n=96, format="nibbles")
    with pytest.raises(IRError, match="int8_rows cannot be interleaved"):
        b.op(
            "tensor.linear_packed", x, *FORMATS.get("int8_rows").transform(b, w), n=96, format="int8_rows", interleave=2
        )
