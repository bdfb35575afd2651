"""Kernels of every region kind compile ahead of time; what they cost and what is recorded with them."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import triton
from ptx_metrics import opcodes, usage
from triton.backends.nvidia.compiler import CUDAOptions

from inferir.codegen.triton import compile_kernel as compiling
from inferir.codegen.triton.backend import lower_region
from inferir.codegen.triton.compile_kernel import OPTIONS, compile_kernel, load_function
from inferir.codegen.triton.kernel_source import KernelSource
from inferir.ir.contract.target import Target
from inferir.ir.errors import CodegenError, TargetError
from inferir.ir.graph.dims import T
from inferir.ir.graph.dtypes import DType

H100, A100 = Target.named("sm_90"), Target.named("sm_80")


def test_every_kind_of_region_compiles_without_spills(case: Any, name: str) -> None:
    kernel = compile_kernel(case.kernel, H100)
    assert kernel.name == case.kernel.name
    assert kernel.params == tuple(f"*{kind}" for _, kind in case.kernel.params)
    assert kernel.grid == case.kernel.grid
    used = usage(kernel.image)
    assert used.registers <= 128
    assert used.stack == 0 or name == "every_scalar_op"  # sine and cosine of large arguments keep a table in memory


@pytest.mark.parametrize("name", ["rms_norm_gemma", "add_norm", "gate_up_silu", "rotary", "head_norm_rotary"])
def test_rows_are_moved_in_wide_loads_and_stores(case: Any) -> None:
    code = opcodes(compile_kernel(case.kernel, H100).image)
    narrow = code.count("LDG") - code.count("LDG.E.128", "LDG.E.64")
    positions = sum(1 for _, kind in case.kernel.params if kind == "i32")
    assert code.count("LDG.E.128") > 0
    assert code.count("STG.E.128") == code.count("STG") > 0
    assert narrow <= positions


@pytest.fixture
def norm(body: Any) -> KernelSource:
    region = body.region(body.op("nn.rms_norm", body.arg(T, 1024), body.arg(1024), eps=1e-6))
    return lower_region("norm", region)


def test_what_a_launch_needs_is_recorded(norm: KernelSource, dtype: DType) -> None:
    kernel = compile_kernel(norm, H100)
    kind = {"f32": "*fp32", "bf16": "*bf16"}[dtype.value]
    assert kernel.params == (kind, kind, kind)
    assert (kernel.num_warps, kernel.num_ctas, kernel.warp_size) == (4, 1, 32)
    assert (kernel.alignment, kernel.target, kernel.grid) == (16, "sm_90", ("T", "1"))
    assert 0 < kernel.shared <= 4096
    assert (kernel.global_scratch_size, kernel.profile_scratch_size) == (0, 0)
    assert (kernel.launch_pdl, kernel.launch_cooperative_grid) == (False, False)
    assert kernel.versions == {"triton": triton.__version__, "ptxas": triton.knobs.nvidia.ptxas.version}


def test_the_image_depends_on_source_and_target_alone(norm: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernel(norm, H100)
    assert b"/" + __file__.encode().split(b"/")[1] not in first.image
    assert b"inferir-triton-" not in first.image
    monkeypatch.chdir("/")
    assert compile_kernel(norm, H100) == first
    other = compile_kernel(norm, A100)
    assert other.target == "sm_80"
    assert other.image != first.image


def test_every_kernel_stands_at_the_same_line(case: Any, tmp_path: Path) -> None:
    """Triton's cache keys and error messages hold the line, so it may not vary."""
    lines = case.kernel.source.splitlines()
    assert lines[5] == "@triton.jit"
    assert lines[6].startswith(f"def {case.kernel.name}(")
    path = tmp_path / "kernel.py"
    path.write_text(case.kernel.source, encoding="utf-8")
    assert load_function(path, case.kernel.name).starting_line_number == 6


def test_triton_knows_every_option() -> None:
    """It would ignore a misspelt one."""
    assert OPTIONS.keys() < {f.name for f in dataclasses.fields(CUDAOptions)}


@pytest.mark.parametrize("dtype", [DType.F32])
def test_multiplications_and_additions_are_not_fused(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = body.arg(T, 1024), body.arg(T, 1024)
    region = body.region(body.op("tensor.add", body.op("tensor.mul", x, y), y))
    kernel = lower_region("muladd", region)
    assert opcodes(compile_kernel(kernel, H100).image).count("FFMA") == 0
    monkeypatch.setattr(compiling, "OPTIONS", {**OPTIONS, "enable_fp_fusion": True})
    assert opcodes(compile_kernel(kernel, H100).image).count("FFMA") > 0


def test_settings_of_the_process_are_left_alone(norm: KernelSource) -> None:
    before = (dict(os.environ), triton.knobs.cache.dir, triton.knobs.compilation.disable_line_info)
    compile_kernel(norm, A100)
    assert (dict(os.environ), triton.knobs.cache.dir, triton.knobs.compilation.disable_line_info) == before


def test_misuse_is_refused(norm: KernelSource) -> None:
    with pytest.raises(TargetError, match="target x86-64-v3 is no CUDA device"):
        compile_kernel(norm, Target.named("x86-64-v3"))
    broken = dataclasses.replace(norm, source=norm.source + "    tl.store(o0 + undefined, 1.0)\n")
    with pytest.raises(CodegenError, match=r"kernel norm for sm_90: .*undefined"):
        compile_kernel(broken, H100)
    for text, reason in (("def norm(:", "SyntaxError"), ("raise ValueError('no')", "no"), ("x = 1", "AttributeError")):
        with pytest.raises(CodegenError, match=rf"norm\.py: .*{reason}"):
            compile_kernel(dataclasses.replace(norm, source=text), H100)
    for tool in (usage, opcodes):
        with pytest.raises(CodegenError, match=r"cuobjdump|nvdisasm"):
            tool(b"not a cubin")
