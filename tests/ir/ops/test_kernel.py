"""Regions: types come from the body, and the body runs on the operands in order."""

import pytest
import torch

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType

X = TensorType((T, 4), DType.F32)


def difference() -> Graph:
    b = Builder()
    x, y = b.input("x", X), b.input("y", X)
    return Graph((x, y), (b.op("tensor.sub", x, y), b.op("tensor.cast", y, dtype=DType.BF16)))


def test_results_are_those_of_the_body() -> None:
    b = Builder()
    x, y = b.input("x", X), b.input("y", X)
    node = b.node("kernel.region", (y, x), {"anchor": "rowwise", "body": difference(), "name": "sub"})
    assert node.types == (X, TensorType((T, 4), DType.BF16))
    tensors = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    out = interpret(Graph((x, y), node.results), tensors)
    assert torch.equal(out["out0"], tensors["y"] - tensors["x"])
    assert torch.equal(out["out1"], tensors["x"].bfloat16())


def test_misuse_is_refused() -> None:
    b = Builder()
    x = b.input("x", X)
    attrs = {"anchor": "rowwise", "body": difference(), "name": "sub"}
    with pytest.raises(IRError, match="1 operands for a body with 2 inputs"):
        b.node("kernel.region", (x,), attrs)
    with pytest.raises(IRError, match="operand 1 is bf16"):
        b.node("kernel.region", (x, b.op("tensor.cast", x, dtype=DType.BF16)), attrs)
    with pytest.raises(IRError, match="anchor 'scan' is not one of"):
        b.node("kernel.region", (x, x), {**attrs, "anchor": "scan"})
