"""Element types against torch."""

import pytest
import torch

from inferir.ir.graph.dtypes import DType, from_torch, torch_dtype


@pytest.mark.parametrize("dtype", list(DType))
def test_sizes_and_kinds_agree_with_torch(dtype: DType) -> None:
    there = torch_dtype(dtype)
    assert there.itemsize == dtype.itemsize
    assert there.is_floating_point == dtype.is_float
    assert dtype.is_int == (not there.is_floating_point and there != torch.bool)
    assert from_torch(there) is dtype


def test_unknown_torch_types_are_refused() -> None:
    with pytest.raises(KeyError, match="complex64"):
        from_torch(torch.complex64)
