"""Kernels of row-wise regions of every kind."""

from dataclasses import dataclass

import pytest

from inferir.codegen.triton.backend import lower_region
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.graph.dtypes import DType
from inferir.ir.graph.graph import Node
from inferir.testing.row_bodies import BODIES, Body
from inferir.testing.row_cases import case_of

DTYPES = (DType.F32, DType.BF16)


@dataclass(frozen=True)
class Case:
    """A region and its kernel."""

    region: Node
    kernel: KernelSource


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
