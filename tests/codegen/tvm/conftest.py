"""What the kernel tests share: instruction sets this machine can run, aligned arrays, building and loading modules."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferir.codegen.tvm.build import build_module
from inferir.codegen.tvm.isa import Isa, parse_isa

_FLAGS = {"x86-64-v3": {"avx2", "fma"}, "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
_EXTRA = {"bf16": {"avx512_bf16"}, "vnni": {"avx512_vnni"}}


def runs_here(name: str) -> bool:
    """Whether this machine has the instruction set."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    base, *extra = name.split("+")
    return (_FLAGS[base] | set().union(*(_EXTRA[e] for e in extra))) <= flags


@pytest.fixture(params=["x86-64-v4+bf16+vnni", "x86-64-v4", "x86-64-v3"])
def isa(request: pytest.FixtureRequest) -> Isa:
    """Every supported instruction set this machine can run."""
    if not runs_here(request.param):
        pytest.skip(f"this machine cannot run {request.param}")
    return parse_isa(request.param)


@pytest.fixture
def best_isa() -> Isa:
    """The richest instruction set this machine can run."""
    for name in ("x86-64-v4+bf16+vnni", "x86-64-v4", "x86-64-v3"):
        if runs_here(name):
            return parse_isa(name)
    pytest.skip("this machine has no AVX2")


def _aligned(array: Any) -> np.ndarray:
    array = np.ascontiguousarray(array)
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


@pytest.fixture
def aligned() -> Callable[[Any], np.ndarray]:
    """Copy an array to memory aligned to 64 bytes."""
    return _aligned


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Isa], ctypes.CDLL]:
    """Build module text and load the shared object; the same text is built once."""
    folder = tmp_path_factory.mktemp("modules")
    loaded: dict[tuple[str, str], ctypes.CDLL] = {}

    def build_and_load(source: str, isa: Isa) -> ctypes.CDLL:
        key = (source, isa.name)
        if key not in loaded:
            path = folder / f"module{len(loaded)}.so"
            path.write_bytes(build_module(source, isa))
            loaded[key] = ctypes.CDLL(str(path))
        return loaded[key]

    return build_and_load
