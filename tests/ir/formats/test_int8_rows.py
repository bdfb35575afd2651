"""int8_rows: bounds of products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferir.ir.errors import IRError
from inferir.ir.formats.int8_rows import FORMAT as INT8_ROWS
from inferir.ir.graph.attrs import Attrs
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Builder
from inferir.ir.graph.types import TensorType


def pack(w: torch.Tensor, valid: int) -> tuple[torch.Tensor, ...]:
    return INT8_ROWS.pack(w, Attrs({"valid": valid}))


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
def test_bounds_of_products_hold(n: int, k: int, seed: int, size: float, dtype: torch.dtype, step: float) -> None:
    """For random weights and rows with columns of very different size, and coarse integers for the rows."""
    k, g = 4 * k, torch.Generator().manual_seed(seed)
    w = size * (
        torch.randn(n, k, generator=g) * torch.exp(2 * torch.randn(k, generator=g)) + torch.randn(k, generator=g)
    )
    x = torch.randn(6, k, generator=g) * torch.exp(2 * torch.randn(k, generator=g))
    w, x = w.to(dtype), x.to(dtype)
    valid = int(torch.randint(1, n + 1, (), generator=g))
    q, bounds, (factors, mean) = pack(w, valid)
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


def test_packing_keeps_weights_that_are_not_numbers_apart() -> None:
    w = torch.randn(10, 8)
    w[3, 2], w[5, 0], w[6, 1] = float("nan"), float("-inf"), 1e30
    q, bounds, columns = pack(w, 9)
    scale, offset, error, norm = bounds[0]
    wild = [3, 5, 6]
    assert error[wild].tolist() == [float("inf")] * 3
    assert norm[wild].tolist() == [0.0] * 3
    assert (q[0, :, wild] == 128).all()
    for t in (scale[:9], offset[:9], norm[:9], columns):
        assert t.isfinite().all()
    assert error[[0, 1, 2, 4, 7, 8]].max() < 0.1
    assert (offset[9:] == float("-inf")).all()
    nothing = pack(torch.full((3, 8), float("nan")), 3)
    assert nothing[2].tolist() == [[1.0] * 8, [0.0] * 8]
    assert (nothing[1][0, 2, :3] == float("inf")).all()


def test_types() -> None:
    b = Builder()
    w = b.weight("w", TensorType((70, 8), DType.BF16))
    values = INT8_ROWS.transform(b, w, valid=69)
    assert [str(v.type) for v in values] == ["u8[2, 2, 64, 4]", "f32[2, 4, 64]", "f32[2, 8]"]
    for k, valid, message in ((6, 1, "K = 6 is not a multiple of 4"), (8, 71, "valid = 71 of 70"), (8, 0, "valid = 0")):
        other = b.weight("v", TensorType((70, k), DType.BF16))
        with pytest.raises(IRError, match=message):
            INT8_ROWS.transform(b, other, valid=valid)
