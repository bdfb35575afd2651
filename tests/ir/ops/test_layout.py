"""Packed weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.errors import IRError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder, Graph
from inferir.ir.graph.interpreter import interpret
from inferir.ir.graph.types import TensorType
from inferir.ir.ops.layout import pack_weight, screen_weight, unpack_weight


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


def _unpacked(q: torch.Tensor, n: int) -> torch.Tensor:
    blocks, words, block, four = q.shape
    return q.permute(0, 2, 1, 3).reshape(blocks * block, words * four)[:n].double() - 128


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 150),
    st.integers(1, 12),
    st.integers(0, 2**31),
    st.sampled_from([1e-6, 0.02, 3.0, 1e5]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([0.01, 0.1, 1.0]),
)
def test_screening_bounds_hold(n: int, k: int, seed: int, size: float, dtype: torch.dtype, step: float) -> None:
    """For random weights and rows with columns of very different size, and coarse integers for the rows."""
    k, g = 4 * k, torch.Generator().manual_seed(seed)
    w = size * (
        torch.randn(n, k, generator=g) * torch.exp(2 * torch.randn(k, generator=g)) + torch.randn(k, generator=g)
    )
    x = torch.randn(6, k, generator=g) * torch.exp(2 * torch.randn(k, generator=g))
    w, x = w.to(dtype), x.to(dtype)
    valid = int(torch.randint(1, n + 1, (), generator=g))
    q, bounds, (factors, mean) = screen_weight(w, 64, valid)
    scale, offset, error, norm = bounds.permute(1, 0, 2).reshape(4, -1)[:, :n].double()
    z = x.double() * factors.double()
    assert torch.equal(z, (x.float() * factors).double())
    s = step * z.square().mean(1, keepdim=True).sqrt()
    levels = (z / s).round()
    torch.testing.assert_close(mean, w[:valid].double().mean(0).float(), rtol=0, atol=1e-6 * float(w.abs().max()))
    shifted = x.double() @ (w.double() - mean.double()).T
    near = s * scale * (levels @ _unpacked(q, n).T) + offset
    far = error * z.norm(dim=1, keepdim=True) + norm * (z - s * levels).norm(dim=1, keepdim=True)
    assert bool(((shifted - near).abs() <= far)[:, :valid].all())
    assert bool((near == float("-inf"))[:, valid:].all())
    if step == 0.01 and valid > 2 and size < 1e5:
        assert float(far[:, :valid].max()) < 0.1 * float((z.norm(dim=1)[:, None] * norm[:valid]).max())


def test_screening_keeps_weights_that_are_not_numbers_apart() -> None:
    w = torch.randn(10, 8)
    w[3, 2], w[5, 0], w[6, 1] = float("nan"), float("-inf"), 1e30
    q, bounds, columns = screen_weight(w, 64, 9)
    scale, offset, error, norm = bounds[0]
    wild = [3, 5, 6]
    assert error[wild].tolist() == [float("inf")] * 3
    assert norm[wild].tolist() == [0.0] * 3
    assert (q[0, :, wild] == 128).all()
    for t in (scale[:9], offset[:9], norm[:9], columns):
        assert t.isfinite().all()
    assert error[[0, 1, 2, 4, 7, 8]].max() < 0.1
    assert (offset[9:] == float("-inf")).all()
    nothing = screen_weight(torch.full((3, 8), float("nan")), 64, 3)
    assert nothing[2].tolist() == [[1.0] * 8, [0.0] * 8]
    assert (nothing[1][0, 2, :3] == float("inf")).all()


def test_screening_types() -> None:
    b = Builder()
    w = b.weight("w", TensorType((70, 8), DType.BF16))
    node = b.node("layout.screen_weight", (w,), {"block": 64, "valid": 69})
    assert [str(t) for t in node.types] == ["u8[2, 2, 64, 4]", "f32[2, 4, 64]", "f32[2, 8]"]
    for k, valid, message in ((6, 1, "K = 6 is not a multiple of 4"), (8, 71, "valid = 71 of 70"), (8, 0, "valid = 0")):
        other = b.weight("v", TensorType((70, k), DType.BF16))
        with pytest.raises(IRError, match=message):
            b.node("layout.screen_weight", (other,), {"block": 64, "valid": valid})
