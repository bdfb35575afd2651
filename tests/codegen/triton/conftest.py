"""Kernels of row-wise regions of every kind, and one interpreter process for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from kernel_arguments import in_order

from inferir.codegen.triton.backend import lower_region
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.contract.kernel_args import Operand, Result
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.ir.graph.interpreter import run_body
from inferir.testing.row_bodies import BODIES, Body
from inferir.testing.row_cases import ALL, COUNTS, case_of
from inferir.testing.triton_interpreter import Run, run_interpreted

DTYPES = (DType.F32, DType.BF16)


@dataclass(frozen=True)
class Case:
    """A region and its kernel."""

    region: Node
    kernel: KernelSource

    def run(self, operands: Sequence[torch.Tensor]) -> Run:
        """The launch: operands, then results that nothing has been written to, as the kernel's parameters want them."""
        results = [torch.full_like(t, 77) for t in run_body(self.region.attrs["body"], operands)]
        rows, tiles = self.kernel.grid
        return Run(self.kernel, (COUNTS[rows], int(tiles)), in_order(self.kernel.args, operands, results))

    def results(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The region's results among the tensors of a launch; a cache is its own operand."""
        body, at = self.region.attrs["body"], dict(zip(self.kernel.args, tensors, strict=True))
        where = [
            Operand(body.inputs.index(v.node.operands[0])) if v.op == "kv.write" else Result(i)
            for i, v in enumerate(body.outputs)
        ]
        return [at[i] for i in where]


_kernels: dict[tuple[str, DType], Case] = {}


def kernel_of(name: str, dtype: DType) -> Case:
    if (name, dtype) not in _kernels:
        body, b = case_of(name, dtype).body, Body(dtype)
        region = b.node("kernel.region", body.inputs, {"anchor": "rowwise", "body": body, "name": "test"})
        _kernels[name, dtype] = Case(region, lower_region(f"test_{name}", region))
    return _kernels[name, dtype]


@pytest.fixture(params=sorted(BODIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DTYPES, ids=lambda d: d.value)
def dtype(request: pytest.FixtureRequest) -> DType:
    assert isinstance(request.param, DType)
    return request.param


@pytest.fixture
def case(name: str, dtype: DType) -> Case:
    """One case; a test that parametrizes `name` itself chooses which."""
    return kernel_of(name, dtype)


@pytest.fixture
def body(dtype: DType) -> Body:
    """An empty body to fill."""
    return Body(dtype)


@pytest.fixture(scope="session")
def interpreted() -> dict[tuple[str, DType], list[torch.Tensor]]:
    """The results of every case, by name and element type, from one interpreter process."""
    keys = [(name, dtype) for name in sorted(ALL) for dtype in (*DTYPES, DType.F16)]
    outs = run_interpreted([kernel_of(*key).run(case_of(*key).tensors) for key in keys])
    return {key: kernel_of(*key).results(tensors) for key, tensors in zip(keys, outs, strict=True)}


@pytest.fixture
def results(
    interpreted: dict[tuple[str, DType], list[torch.Tensor]],
) -> Callable[[str, DType], list[torch.Tensor]]:
    return lambda name, dtype: interpreted[name, dtype]


@pytest.fixture
def flushes() -> bool:
    """Compiled for the GPU, too, subnormal numbers are kept."""
    return False


@pytest.fixture
def refused() -> Callable[[str, DType], str | None]:
    return lambda name, dtype: None
