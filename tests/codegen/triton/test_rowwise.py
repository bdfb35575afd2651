"""Generated row kernels, run in the interpreter, against the reference interpreter on the region's body."""

from typing import Any

import torch

from inferir.ir.graph.dtypes import DType


def test_results_equal_the_reference(case: Any, name: str, dtype: DType, interpreted: Any) -> None:
    """In float32 up to the last places of libdevice and the order of sums; in bf16 equal but for rare last places."""
    results = interpreted[name, dtype]
    assert len(results) == len(case.expect)
    for i, (got, want) in enumerate(zip(results, case.expect, strict=True)):
        assert got.dtype == want.dtype, i
        if not want.dtype.is_floating_point:
            assert torch.equal(got, want), i
        elif want.dtype == torch.float32:
            torch.testing.assert_close(got, want, rtol=4e-6, atol=2e-6)
        else:
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
            assert float((got != want).float().mean()) < 0.01, i
