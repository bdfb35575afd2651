"""Building modules: determinism, errors that name the place, aliasing between private functions, parallel workers."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferir.codegen.backend import BuildJob
from inferir.codegen.tvm.build.build_module import build_module
from inferir.codegen.tvm.build.parallel_build import build_many
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError

_EXPORT = 'T.func_attr({"global_symbol": "inferir_run", "calling_conv": 2})'

pytestmark = pytest.mark.usefixtures("real_workers")


def _module(amount: int, statement: str = "") -> str:
    return f"""
@I.ir_module
class Mod:
    @T.prim_func
    def run(x: T.handle("int32"), n: T.int32) -> T.int32:
        {_EXPORT}
        X = T.decl_buffer((1,), "int32", data=x)
        {statement}
        for i in range(n):
            X[i] = X[i] + {amount}
        return T.int32(0)
"""


def _run(module: bytes, folder: Path, values: list[int]) -> list[int]:
    path = folder / "module.so"
    path.write_bytes(module)
    x = np.array(values, np.int32)
    ctypes.CDLL(str(path)).inferir_run(ctypes.c_void_p(x.ctypes.data), ctypes.c_int32(len(values)))
    return x.tolist()


def test_a_module_runs_and_exports_only_its_own_functions(host: Target, tmp_path: Path) -> None:
    module = build_module(_module(5), host)
    assert _run(module, tmp_path, [1, 2, 3]) == [6, 7, 8]
    if not Path("/usr/bin/nm").exists():
        pytest.skip("nm shows the symbols")
    listing = subprocess.run(["/usr/bin/nm", "-D", tmp_path / "module.so"], capture_output=True, text=True, check=True)
    assert listing.stdout.split()[1:] == ["T", "inferir_run"]


def test_modules_are_the_same_bytes_in_every_process(host: Target, tmp_path: Path) -> None:
    here = build_module(_module(5), host)
    assert build_module(_module(5), host) == here
    built = build_many([BuildJob(str(i), _module(i), host) for i in (5, 6)], workers=2)
    assert built[0] == here
    assert _run(built[1], tmp_path, [1]) == [7]
    for part in (str(Path.home()), str(tmp_path.parent), "inferir-build"):
        assert part.encode() not in here


def test_parallel_builds_report_progress(host: Target) -> None:
    seen: list[tuple[int, int]] = []
    jobs = [BuildJob(f"bucket{i}", _module(i), host) for i in range(3)]
    build_many(jobs, workers=2, progress=lambda built, total: seen.append((built, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert build_many([]) == []


def test_ctrl_c_ends_the_workers_quietly(host: Target) -> None:
    program = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from inferir.codegen.backend import BuildJob
from inferir.codegen.tvm.build.parallel_build import build_many
from inferir.ir.contract.target import Target
jobs = [BuildJob("a", {_module(1)!r}, Target.named({host.name!r}))] * 50
try:
    build_many(jobs, workers=2, progress=lambda done, total: print(done, flush=True))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "1\n"
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does it
    out, err = child.communicate(timeout=60)
    assert out.endswith("stopped\n")
    assert (child.returncode, err) == (0, "")


def test_errors_name_job_function_and_line(host: Target) -> None:
    bad = _module(1, "X[0] = missing + 1")
    with pytest.raises(CodegenError, match=r"missing in run, line 8: X\[0\] = missing \+ 1"):
        build_module(bad, host)
    jobs = [BuildJob("good", _module(1), host), BuildJob("decode bucket", bad, host)]
    with pytest.raises(CodegenError, match=r"decode bucket: .*missing in run"):
        build_many(jobs, workers=2)


def test_unknown_helper_is_an_error(host: Target) -> None:
    call = 'T.evaluate(T.call_extern("int32", "inf_no_such_4"))'
    with pytest.raises(CodegenError, match="inf_no_such_4"):
        build_module(_module(1, call), host)


def test_a_missing_linker_is_named(host: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferir.codegen.linker.shutil.which", lambda name: None)
    with pytest.raises(CodegenError, match="no linker found"):
        build_module(_module(1), host)


def test_private_functions_may_share_memory_through_different_parameters(
    host: Target, load: Callable[[str, Target], ctypes.CDLL], aligned: Callable[[Any], np.ndarray]
) -> None:
    """One function writes shorts, the next reads them as ints: inlining both must not reorder them."""
    source = f"""
@I.ir_module
class Mod:
    @T.prim_func(private=True)
    def write(x: T.handle("uint16"), i: T.int32) -> T.int32:
        X = T.decl_buffer((1,), "uint16", data=x)
        for k in T.unroll(4):
            X[k] = T.cast(i + k, "uint16")
        return T.int32(0)

    @T.prim_func(private=True)
    def read(x: T.handle("int32"), out: T.handle("int32"), i: T.int32) -> T.int32:
        X = T.decl_buffer((1,), "int32", data=x)
        OUT = T.decl_buffer((1,), "int32", data=out)
        OUT[i] = X[0] + X[1]
        return T.int32(0)

    @T.prim_func
    def run(x: T.handle("int32"), out: T.handle("int32"), n: T.int32) -> T.int32:
        {_EXPORT}
        X = T.decl_buffer((1,), "int32", data=x)
        OUT = T.decl_buffer((1,), "int32", data=out)
        for i in range(n):
            T.evaluate(Mod.write(T.address_of(X[0]), i))
            T.evaluate(Mod.read(T.address_of(X[0]), T.address_of(OUT[0]), i))
        return T.int32(0)
"""
    module = load(source, host)
    x, out = aligned(np.zeros(16, np.int32)), aligned(np.zeros(16, np.int32))
    module.inferir_run(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int32(16))
    i = np.arange(16)
    np.testing.assert_array_equal(out, i + ((i + 1) << 16) + (i + 2) + ((i + 3) << 16))
