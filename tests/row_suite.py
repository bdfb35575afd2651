"""The tests of row-wise kernels that every backend runs.

A backend imports them into a test module of its own and supplies three fixtures: `results(name, dtype)`, what its
kernel for a body of `row_cases.ALL` makes of the case's operands; `refused(name, dtype)`, a part of the message where
it has none, else None; and `flushes`, whether its instruction that rounds to bf16 makes subnormal numbers zero.
"""

from collections.abc import Callable

import pytest
import torch

from inferir.codegen.lower.decompose import decompose
from inferir.ir.errors import CodegenError
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.interpreter import run_body
from inferir.ir.graph.registry import all_ops
from inferir.testing.row_cases import ALL, case_of, check

Results = Callable[[str, DType], list[torch.Tensor]]
Refused = Callable[[str, DType], str | None]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16], ids=lambda d: d.value)
@pytest.mark.parametrize("name", sorted(ALL))
def test_a_body_computes_what_the_reference_does(
    name: str, dtype: DType, results: Results, refused: Refused, flushes: bool
) -> None:
    reason = refused(name, dtype)
    if reason is not None:
        with pytest.raises(CodegenError, match=reason):
            results(name, dtype)
        return
    case = case_of(name, dtype)
    for got, want in zip(results(name, dtype), run_body(case.body, case.tensors), strict=True):
        check(name, got, want, flushes)


def test_every_elementwise_op_is_in_a_body() -> None:
    bodies = [case_of(name, DType.F32).body for name in ALL]
    used = {n.op for body in bodies for n in (*body.nodes, *decompose(body).nodes)}
    assert {name for name, op in all_ops().items() if op.elementwise} <= used
