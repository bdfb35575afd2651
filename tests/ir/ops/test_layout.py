"""Packed weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.dims import T
from inferir.ir.dtypes import DType
from inferir.ir.errors import IRError
from inferir.ir.graph import Builder, Graph
from inferir.ir.interpreter import interpret
from inferir.ir.ops.layout import pack_weight, unpack_weight
from inferir.ir.types import TensorType


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(1, 6),
    st.sampled_from([32, 64, 128]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
)
def test_unpacking_undoes_packing(n: int, k: int, block: int, kpack: int, parts: int) -> None:
    n *= parts
    w = torch.arange(1, n * k * kpack + 1, dtype=torch.float32).view(n, k * kpack)
    packed = pack_weight(w, block, kpack, parts)
    assert packed.shape == (-(-n // block), k, block, kpack)
    assert packed.is_contiguous()
    assert torch.equal(unpack_weight(packed, n, parts), w)
    assert int((packed == 0).sum()) == packed.numel() - w.numel()


def test_a_block_alternates_between_the_halves() -> None:
    w = torch.arange(128.0).view(128, 1)
    first = pack_weight(w, 64, 1, 2)[0, 0, :, 0].tolist()
    assert first == [*range(16), *range(64, 80), *range(16, 32), *range(80, 96)]
    pairs = pack_weight(torch.arange(64.0 * 4).view(64, 4), 64, 2, 1)
    assert pairs[0, 1, 3].tolist() == [4 * 3 + 2, 4 * 3 + 3]


def test_packing_in_a_graph_and_the_product_with_a_packed_weight() -> None:
    b = Builder()
    x, w = b.input("x", TensorType((T, 8), DType.F32)), b.weight("w", TensorType((96, 8), DType.F32))
    packed = b.op("layout.pack_weight", w, block=64, kpack=2, interleave=2)
    y = b.op("tensor.linear_packed", x, packed, n=96, interleave=2)
    graph = Graph((x,), (y, packed), ("y", "packed"))
    t, weight = torch.randn(5, 8), torch.randn(96, 8)
    out = interpret(graph, {"x": t}, {"w": weight})
    torch.testing.assert_close(out["y"], t @ weight.T)
    assert tuple(out["packed"].shape) == packed.type.shape == (2, 4, 64, 2)


def test_misuse_is_refused() -> None:
    b = Builder()
    w = b.weight("w", TensorType((96, 9), DType.F32))
    with pytest.raises(IRError, match="K = 9 is not a multiple of 2"):
        b.op("layout.pack_weight", w, block=64, kpack=2)
    with pytest.raises(IRError, match="block 16 is not a multiple of 32"):
        b.op("layout.pack_weight", w, block=16, kpack=1, interleave=2)
    with pytest.raises(IRError, match="N = 95 is not a multiple of 2"):
        b.op("layout.pack_weight", b.weight("w", TensorType((95, 8), DType.F32)), block=64, kpack=1, interleave=2)
    packed = b.op("layout.pack_weight", w, block=64, kpack=1)
    x = b.input("x", TensorType((T, 9), DType.F32))
    with pytest.raises(IRError, match="300 outputs do not fill 2 blocks"):
        b.op("tensor.linear_packed", x, packed, n=300)
    with pytest.raises(IRError, match="inner dimensions 8 and 9 differ"):
        b.op("tensor.linear_packed", b.input("x", TensorType((T, 8), DType.F32)), packed, n=96)
