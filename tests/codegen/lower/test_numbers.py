"""Numbers as half-precision memory holds them are those of PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from inferir.codegen.lower.numbers import stored
from inferir.ir.graph.dtypes import DType

VALUES = [0.0, -0.0, 0.1, -0.1, 1 / 3, 1.00390625, 1.01171875, 65504.0, 65519.9, 65520.0, 3.39e38, 3.4e38, 1e39, -1e39]
VALUES += [1e-7, 6e-8, 2.9e-8, 1e-40, 5e-324, math.inf, -math.inf, math.pi, 1e300]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("dtype", "torch_dtype"), [(DType.BF16, torch.bfloat16), (DType.F16, torch.float16)])
def test_rounded_as_torch_rounds(value: float, dtype: DType, torch_dtype: torch.dtype) -> None:
    expected = torch.tensor(value, dtype=torch.float64).to(torch.float32).to(torch_dtype).item()
    got = stored(value, dtype)
    assert (got, math.copysign(1, got)) == (expected, math.copysign(1, expected))


def test_other_types_hold_it_as_it_is() -> None:
    assert stored(0.1, DType.F32) == 0.1
    assert math.isnan(stored(math.nan, DType.BF16))
