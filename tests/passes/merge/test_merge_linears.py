"""Products that can become one, and the slices that stand for each of them afterwards."""

import pytest
import torch

from inferir.ir.graph.dims import Dim, R, T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph, Node
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.passes.merge.merge_linears import merged, reason_against

B = Builder()
X = B.input("x", TensorType((T, 4), DType.F32))


def linear(rows: Dim = 3, bias: bool = False, dtype: DType = DType.F32) -> Node:
    name = f"w{rows}{bias}"
    operands = [B.weight(name, TensorType((rows, 4), dtype))]
    operands += [B.weight(f"b{rows}", TensorType((rows,), dtype))] if bias else []
    return B.op("tensor.linear", B.op("tensor.cast", X, dtype=dtype), *operands).node


@pytest.mark.parametrize(
    ("linears", "reason"),
    [
        ([linear(3), linear(5)], None),
        ([linear(3, bias=True), linear(5, bias=True)], None),
        ([linear(3), linear(5, bias=True)], "some have a bias and some have not"),
        ([linear(3), linear(5, dtype=DType.BF16)], "weights have different element types"),
        ([linear(3), linear(R)], "a weight has no static shape"),
    ],
)
def test_what_can_be_merged(linears: list[Node], reason: str | None) -> None:
    assert reason_against(linears) == reason


@pytest.mark.parametrize("bias", [False, True])
def test_slices_are_the_products_in_order(bias: bool) -> None:
    linears = [linear(n, bias) for n in (3, 1, 5)]
    before = Graph((X,), tuple(n.result for n in linears))
    after = Graph((X,), tuple(merged(X, linears)))
    assert [n.op for n in after.nodes].count("tensor.linear") == 1
    weights = {n: torch.randn(v.type.concrete({})).to(torch_dtype(v.type.dtype)) for n, v in before.weights().items()}
    x = {"x": torch.randn(7, 4)}
    for want, got in zip(interpret(before, x, weights).values(), interpret(after, x, weights).values(), strict=True):
        torch.testing.assert_close(got, want)
