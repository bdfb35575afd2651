"""Row-wise bodies with operands, and what a kernel's results are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from inferir.ir.graph.dtypes import DType, torch_dtype
from inferir.ir.graph.graph import Graph, Node
from inferir.ir.graph.verifier import verify
from inferir.testing.compare import Difference, compare
from inferir.testing.kernel_runs import RegionRun
from inferir.testing.number_bodies import NUMBERS, ROWS
from inferir.testing.row_bodies import BODIES, TABLE, Body, Make

COUNTS: Mapping[str, int] = {"T": ROWS, "R": ROWS, "NB": 5, "MB": 4}
ALL: dict[str, Make] = {**BODIES, **NUMBERS}


@dataclass(frozen=True)
class Case:
    """A body and the operands for `rows` rows."""

    body: Graph
    tensors: list[torch.Tensor]
    rows: int

    def run(self, name: str = "test") -> RegionRun:
        """The body as a region of that name, with its operands."""
        node: Node = Body(DType.F32).node(
            "kernel.region", self.body.inputs, {"anchor": "rowwise", "body": self.body, "name": name}
        )
        return RegionRun(node, self.tensors)


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


def difference(name: str, got: torch.Tensor, want: torch.Tensor, flushes: bool = False) -> Difference | str | None:
    """What is wrong with a result. Numbers in operations that are rounded once, and integers, must be exact; else up to
    the last places of functions and the order of sums, in half precision all but a few equal. flushes: subnormal
    numbers in bf16 may be zero.
    """
    if got.dtype != want.dtype:
        return f"a result is {got.dtype}, not {want.dtype}"
    if flushes and want.dtype == torch.bfloat16:
        want = torch.where((got == 0) & (want.abs() < torch.finfo(want.dtype).smallest_normal), got, want)
    if not want.dtype.is_floating_point or (name in NUMBERS and "pow" not in name):
        return compare(got, want)
    if want.dtype == torch.float32:
        return compare(got, want, relative=4e-6, scale=0.5)
    off = float((got != want).float().mean())
    found = compare(got, want, relative=1e-2, scale=1.0)
    return found or (None if off < 0.02 else f"{off:.0%} of the results are rounded in another way")


def check(name: str, got: torch.Tensor, want: torch.Tensor, flushes: bool = False) -> None:
    """Raise `AssertionError` with the `difference`, if there is one."""
    found = difference(name, got, want, flushes)
    assert found is None, f"{name}: {found}"
