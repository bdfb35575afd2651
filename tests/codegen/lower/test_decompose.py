"""Bodies lowered by any backend hold `tensor.*` ops only, and still compute the same."""

import pytest
import torch

from inferir.codegen.lower.decompose import decompose
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_composite_ops_are_replaced_until_none_is_left(dtype: DType) -> None:
    b = Builder()
    x, w = b.input("x", TensorType((T, 48), dtype)), b.input("w", TensorType((48,), dtype))
    y = b.op("nn.softcap", b.op("nn.rms_norm", x, w, eps=1e-6), cap=3.0)
    body = Graph((x, w), (b.op("tensor.softmax", y, dim=-1), b.op("nn.gated_act", y, x, kind="gelu_tanh")))
    out = decompose(body)
    assert {n.op.split(".")[0] for n in out.nodes} == {"core", "tensor"}
    assert "tensor.softmax" not in {n.op for n in out.nodes}
    tensors = {"x": torch.randn(5, 48).to(torch_dtype(dtype)), "w": torch.randn(48).to(torch_dtype(dtype))}
    for got, want in zip(interpret(out, tensors).values(), interpret(body, tensors).values(), strict=True):
        torch.testing.assert_close(got, want)


def test_softmax_of_half_precision_rounds_once() -> None:
    b = Builder()
    x = b.input("x", TensorType((T, 200), DType.BF16))
    body = decompose(Graph((x,), (b.op("tensor.softmax", x, dim=-1),)))
    rows = torch.randn(20, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    (got,) = interpret(body, {"x": rows}).values()
    assert float((got != rows.float().softmax(-1).bfloat16()).float().mean()) < 0.001


def test_bodies_without_composite_ops_are_left_as_they_are() -> None:
    b = Builder()
    x = b.input("x", TensorType((T, 4), DType.F32))
    body = Graph((x,), (b.op("tensor.exp", x),))
    assert decompose(body) is body
