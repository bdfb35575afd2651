"""Row-wise bodies with operands, and what a kernel's results are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from number_bodies import NUMBERS, ROWS
from row_bodies import BODIES, TABLE, Body, Make

from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Graph
from inferir.ir.graph.verifier import verify

COUNTS: Mapping[str, int] = {"T": ROWS, "R": ROWS, "NB": 5, "MB": 4}
ALL: dict[str, Make] = {**BODIES, **NUMBERS}


@dataclass(frozen=True)
class Case:
    """A body and the operands for `rows` rows."""

    body: Graph
    tensors: list[torch.Tensor]
    rows: int


@cache
def case_of(name: str, dtype: DType, rows: int = ROWS) -> Case:
    """The body `name` with random operands; integers are row numbers, all different along the rows."""
    b = Body(dtype)
    outputs = tuple(ALL[name](b))
    verify(Graph(tuple(b.inputs), b.region(*outputs).results))
    generator = torch.Generator().manual_seed(len(name))
    operands = []
    for value in b.inputs:
        shape = value.type.concrete({**COUNTS, "T": rows, "R": rows})
        if value in b.given:
            operands.append(b.given[value])
        elif value.type.dtype.is_int:
            numbers = torch.randperm(TABLE, generator=generator)[: shape[0]]
            operands.append(numbers.view(-1, *[1] * (len(shape) - 1)).expand(shape).to(torch.int32).contiguous())
        else:
            operands.append(torch.randn(shape, generator=generator).to(torch_dtype(value.type.dtype)))
    return Case(Graph(tuple(b.inputs), outputs), operands, rows)


def check(name: str, got: torch.Tensor, want: torch.Tensor, flushes: bool = False) -> None:
    """Numbers in operations that are rounded once, and integers, exactly; else up to the last places of functions and
    the order of sums, in half precision all but a few equal. flushes: subnormal numbers in bf16 may be zero."""
    assert got.dtype == want.dtype
    if flushes and want.dtype == torch.bfloat16:
        want = torch.where((got == 0) & (want.abs() < torch.finfo(want.dtype).smallest_normal), got, want)
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want)
    elif name in NUMBERS and "pow" not in name:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    elif want.dtype == torch.float32:
        torch.testing.assert_close(got, want, rtol=4e-6, atol=2e-6)
    else:
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
        assert float((got != want).float().mean()) < 0.02
