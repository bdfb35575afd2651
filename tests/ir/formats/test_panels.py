"""panels: numbers as they are."""

import pytest
import torch

from inferir.ir.errors import IRError
from inferir.ir.formats.panels import FORMAT as PANELS
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType


def test_packing_in_a_graph_and_the_product_with_a_packed_weight() -> None:
    b = Builder()
    x, w = b.input("x", TensorType((T, 8), DType.BF16)), b.weight("w", TensorType((96, 8), DType.BF16))
    (packed,) = PANELS.transform(b, w, interleave=2)
    y = b.op("tensor.linear_packed", x, packed, n=96, interleave=2)
    graph = Graph((x,), (y, packed), ("y", "packed"))
    t, weight = torch.randn(5, 8).bfloat16(), torch.randn(96, 8).bfloat16()
    out = interpret(graph, {"x": t}, {"w": weight})
    torch.testing.assert_close(out["y"], t @ weight.T)
    assert tuple(out["packed"].shape) == packed.type.shape == (2, 4, 64, 2)


def test_misuse_is_refused() -> None:
    b = Builder()
    with pytest.raises(IRError, match=r"layout.pack_panels\(bf16\[96, 9\]\): K = 9 is not a multiple of 2"):
        PANELS.transform(b, b.weight("w", TensorType((96, 9), DType.BF16)))
    with pytest.raises(IRError, match="a block has no 8 parts"):
        PANELS.transform(b, b.weight("w", TensorType((96, 8), DType.F32)), interleave=8)
    with pytest.raises(IRError, match="N = 95 is not a multiple of 2"):
        PANELS.transform(b, b.weight("w", TensorType((95, 8), DType.F32)), interleave=2)
