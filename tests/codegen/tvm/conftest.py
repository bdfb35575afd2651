"""What the kernel tests share: instruction sets this machine can run, aligned arrays, building and loading modules."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferir.codegen.tvm.build import build_module
from inferir.ir.target import TARGETS, Target, host_features, missing_features

_HAVE = host_features()


@pytest.fixture(params=[t.name for t in TARGETS.values() if t.kind == "cpu"])
def target(request: pytest.FixtureRequest) -> Target:
    """Every CPU target this machine can run."""
    target = Target.named(request.param)
    if missing_features(target, _HAVE):
        pytest.skip(f"this machine cannot run {target.name}")
    return target


@pytest.fixture
def host() -> Target:
    """The richest CPU target this machine can run."""
    return Target.host()


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
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Target], ctypes.CDLL]:
    """Build module text and load the shared object; the same text is built once."""
    folder = tmp_path_factory.mktemp("modules")
    loaded: dict[tuple[str, str], ctypes.CDLL] = {}

    def build_and_load(source: str, target: Target) -> ctypes.CDLL:
        key = (source, target.name)
        if key not in loaded:
            path = folder / f"module{len(loaded)}.so"
            path.write_bytes(build_module(source, target))
            loaded[key] = ctypes.CDLL(str(path))
        return loaded[key]

    return build_and_load
